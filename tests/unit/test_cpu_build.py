"""Kernels are compiled once, kept safely, and missed with a reason."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cpu import InstructionSetName
from paged_backends.kernels.cpu import compiler as cpu_compiler
from paged_backends.kernels.cpu.availability import unavailable_reason
from paged_backends.kernels.cpu.bindings import Bindings
from paged_backends.kernels.cpu.compiler import (
    EMULATED,
    SETS,
    CppCompiler,
    choose,
    cpp_build,
)
from paged_core import LLM
from paged_core.errors import PagedCoreError, SettingsError

pytestmark = pytest.mark.heavy


SMALLEST = cpp_build("one", ["detect.cpp"])
"""The smallest library there is."""


class Concatenating:
    """The compiler of another language: its libraries are the sources, one after another."""

    def __init__(self, version: str = "1") -> None:
        self.identity = ("concatenate", version)
        self.num_built = 0

    def build(self, sources: Sequence[Path], flags: Sequence[str], target: Path, /) -> None:
        self.num_built += 1
        target.write_bytes(b"".join(source.read_bytes() for source in sources))


@pytest.fixture
def sources(tmp_path: Path) -> Build:
    folders = tmp_path / "sources", tmp_path / "shim"
    for folder in folders:
        folder.mkdir()
        for name in ("a.cu", "b.cu", "shared.h"):
            (folder / name).write_text(name)
    units = ("a.cu", "b.cu")
    return Build(name="gpu", sources=folders[0], units=units, flags=("-O3",), includes=folders[1:])


@pytest.fixture
def compiler() -> CppCompiler:
    try:
        return CppCompiler.find()
    except CannotCompile as error:
        pytest.skip(str(error))


def script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", "utf-8")
    path.chmod(0o755)
    return path


# ---------------------------------------------------------------------- the cache


def test_is_built_once_and_again_when_anything_changed(tmp_path: Path, sources: Build) -> None:
    compiler = Concatenating()
    path = library(sources, compiler, tmp_path)
    assert library(sources, compiler, tmp_path) == path
    assert compiler.num_built == 1
    assert path.read_bytes() == b"a.cub.cu"
    assert path.name.startswith("gpu-")
    assert not list(tmp_path.glob("*.tmp*"))
    paths = {
        path,
        library(replace(sources, flags=("-DX",)), compiler, tmp_path),
        library(sources, Concatenating("2"), tmp_path),
    }
    for folder in (sources.sources, *sources.includes):
        (folder / "shared.h").write_text("changed")
        paths.add(library(sources, compiler, tmp_path))
    assert len(paths) == 5


@pytest.mark.parametrize("damage", [b"", b"\x7fELF not a library"])
def test_a_damaged_file_is_built_again(tmp_path: Path, sources: Build, damage: bytes) -> None:
    path = library(sources, Concatenating(), tmp_path)
    path.write_bytes(damage)
    assert library(sources, Concatenating(), tmp_path) == path
    assert path.read_bytes() == b"a.cub.cu"


def test_a_full_folder_is_named_before_anything_is_compiled(
    tmp_path: Path, sources: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    compiler = Concatenating()
    said = f"^{tmp_path}: 32 MiB are needed to compile, 1 are free; make room"
    with pytest.raises(CannotCompile, match=said):
        library(sources, compiler, tmp_path)
    assert not compiler.num_built


def test_a_second_process_waits_for_the_first(tmp_path: Path, compiler: CppCompiler) -> None:
    log = tmp_path / "log"
    slow = script(
        tmp_path,
        "slow-c++",
        f'case "$*" in *" -c "*) echo "$$" >> {log}; sleep 0.5;; esac\n'
        f'exec {" ".join(compiler.command)} "$@"',
    )
    program = (
        "from paged_backends.kernels.cpu.compiler import CppCompiler, cpp_build\n"
        "from paged_backends.kernels.build import library\n"
        "print(library(cpp_build('one', ['detect.cpp']), CppCompiler.find()))"
    )
    environ = {**os.environ, "CXX": str(slow), "PAGED_CORE_CACHE_DIR": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    paths = {process.communicate()[0].strip().splitlines()[-1] for process in processes}
    assert len(paths) == 1
    assert len(log.read_text().splitlines()) == 1, "more than one of them compiled"


def test_what_lay_in_a_folder_open_to_others_is_not_trusted(
    tmp_path: Path, sources: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    path = library(sources, Concatenating())
    path.write_bytes(b"planted")
    path.with_suffix(".sha256").write_text(hashlib.sha256(b"planted").hexdigest())
    path.parent.chmod(0o777)
    assert library(sources, Concatenating()) == path == tmp_path / "kernels" / path.name
    assert path.read_bytes() != b"planted"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_library_that_cannot_be_loaded_is_built_again(
    tmp_path: Path, compiler: CppCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Bindings.load("portable").path
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    made = library(SMALLEST, compiler)
    useless, path = made.read_bytes(), made.with_name(good.name)  # it lacks the functions
    path.write_bytes(useless)
    path.with_suffix(".sha256").write_text(hashlib.sha256(useless).hexdigest())

    build = CppCompiler.build

    def copy(self: CppCompiler, sources: Any, flags: Any, target: Path, /) -> None:
        if target.name.startswith("detect"):
            build(self, sources, flags, target)
        else:
            shutil.copy(good, target)  # what compiling again would make, in ten seconds

    monkeypatch.setattr(CppCompiler, "build", copy)
    assert Bindings.load("portable").path == path
    assert path.read_bytes() == good.read_bytes()


def test_without_a_compiler_what_another_made_serves(
    tmp_path: Path, compiler: CppCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Bindings.load("portable").path
    path = tmp_path / "kernels" / made.name
    path.parent.mkdir(mode=0o700)
    for file in (*made.parent.glob(f"{made.stem}.*"), *made.parent.glob("detect-*")):
        shutil.copy(file, path.parent)
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert unavailable_reason() is None
    assert Bindings.load("portable").path == path
    assert Bindings.load("auto").path == path
    path.unlink()
    with pytest.raises(CannotCompile, match="install g"):
        Bindings.load("portable")


def test_a_home_that_cannot_be_written_works(
    tmp_path: Path, sources: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = library(sources, Concatenating())
    assert path.parent.parent == tmp_path
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert library(sources, Concatenating()) == path


def test_a_link_in_place_of_the_folder_is_not_followed(
    tmp_path: Path, sources: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("kernels", f"paged_core-{os.getuid()}"):
        (tmp_path / name).symlink_to(elsewhere)
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(CannotCompile, match="PAGED_CORE_CACHE_DIR"):
        library(sources, Concatenating())
    assert not list(elsewhere.iterdir())


# ---------------------------------------------------------------------- the compiler


def test_without_a_compiler_it_says_what_to_install() -> None:
    with pytest.raises(CannotCompile, match="install g"):
        CppCompiler.find({"PATH": ""})
    with pytest.raises(CannotCompile, match="CXX=no-such-compiler does not run"):
        CppCompiler.find({"PATH": os.environ["PATH"], "CXX": "no-such-compiler"})


def test_cxx_is_honoured_with_its_arguments(tmp_path: Path, compiler: CppCompiler) -> None:
    fake = script(tmp_path, "mine", f'exec {" ".join(compiler.command)} "$@"')
    found = CppCompiler.find({"PATH": os.environ["PATH"], "CXX": f"{fake} -O1"})
    assert found.command == (str(fake), "-O1")
    assert library(SMALLEST, found, tmp_path).is_file()


def test_what_the_compiler_says_is_told(tmp_path: Path) -> None:
    fake = script(
        tmp_path,
        "broken",
        'case "$*" in --version) echo fake 1;; *) echo "x.cpp: error: boom" >&2; exit 1;; esac',
    )
    found = CppCompiler.find({"PATH": os.environ["PATH"], "CXX": str(fake)})
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(CannotCompile, match="boom"):
        library(SMALLEST, found, folder)
    assert {path.suffix for path in folder.iterdir()} == {".lock"}


# ---------------------------------------------------------------------- instruction sets


@pytest.mark.parametrize(
    ("answer", "best"), [(31, "avx512_amx"), (15, "avx512_bf16_mixed"), (7, "avx512_bf16")]
)
def test_slow_pairs_come_second(
    answer: int, best: str, compiler: CppCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(paged_core_instruction_sets=lambda: answer)
    monkeypatch.setattr(cpu_compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_compiler.ctypes, "CDLL", lambda _: found)
    there = [one.name for one in cpu_compiler.available(compiler)]
    assert there[0] == best
    names = [name for name in there if not name.endswith("_mixed")]
    assert names == sorted(names, key=[one.name for one in SETS].index)
    assert sorted(there) == sorted(one.name for one in SETS if one.bit & answer == one.bit)
    assert there[-1] == "portable"


@pytest.mark.long
def test_a_compiler_that_knows_fewer_sets_gets_the_next(
    tmp_path: Path, compiler: CppCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = script(
        tmp_path,
        "old-c++",
        'case "$*" in *-mavx*) echo "error: unrecognized option" >&2; exit 1;; esac\n'
        f'exec {" ".join(compiler.command)} "$@"',
    )
    monkeypatch.setenv("CXX", str(old))
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    assert Bindings.load("auto").instruction_set == "portable"


def test_settings_name_the_instruction_sets_that_there_are() -> None:
    assert set(get_args(InstructionSetName)) == {one.name for one in (*SETS, *EMULATED)}


def test_what_the_processor_lacks_is_refused_by_the_name_of_the_setting(
    compiler: CppCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_compiler, "available", lambda _: [SETS[-1]])
    assert choose("auto", compiler) == [SETS[-1]]
    with pytest.raises(
        SettingsError, match=r"^runner\.kernels: .* run 'avx2'; it can run: portable"
    ):
        LLM("demo", runner={"name": "native", "kernels": "avx2"}, attention="torch")
    with pytest.raises(PagedCoreError, match=r"attention\.instruction_set: .* cannot run 'avx2'"):
        LLM("demo", attention={"name": "cpu", "instruction_set": "avx2"}, runner="transformers")


def test_a_library_of_other_structures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        path = Bindings.load("portable").path
    except CannotCompile as error:
        pytest.skip(str(error))
    monkeypatch.setattr("paged_backends.kernels.cpu.bindings.BYTES", (1, 2, 3, 4, 5, 6, 7))
    with pytest.raises(CannotCompile, match=r"structures of \(.*\) bytes, and these are \(1, 2, 3"):
        Bindings.open("portable", path)
