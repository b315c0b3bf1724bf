"""Content of the wheel: one version, types, licences, data files, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions, requires, version
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import paged_core
from paged_core.cli import main

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "paged_core": ROOT / "src",
    "paged_testing": ROOT / "src",
    "paged_policies": ROOT / "policies",
    "paged_backends": ROOT / "backends",
    "paged_plugins": ROOT / "plugins",
}
PEERS = tuple((ROOT / "tools" / "peers").glob("*.py"))
PINNED_BY_TORCH = ("triton", "nvidia", "cuda")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """The wheel, built from the sources as they are."""
    pytest.importorskip("hatchling", reason="what builds the package is not installed")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (path,) = folder.glob("*.whl")
    return ZipFile(path)


def test_the_version_has_one_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT
    assert version("paged-core") == paged_core.__version__
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"paged-core {paged_core.__version__}\n"


def test_the_changelog_knows_the_version() -> None:
    assert f"## [{paged_core.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel: ZipFile) -> None:
    shipped = {PurePosixPath(name) for name in wheel.namelist()}
    info = {path for path in shipped if path.parts[0].endswith(".dist-info")}
    there = {
        PurePosixPath(path.relative_to(folder).as_posix())
        for name, folder in PACKAGES.items()
        for path in (folder / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    there |= {PurePosixPath("paged_plugins/lab/tasks/peer_scripts", path.name) for path in PEERS}
    assert shipped - info == there
    names = {path.name for path in info}
    assert {"LICENSE", "NOTICE", "entry_points.txt", "METADATA"} <= names


def test_the_metadata_says_what_it_needs(wheel: ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = wheel.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    page = metadata.partition("\n\n")[2]
    assert page.startswith("# paged_core")
    assert re.findall(r"\]\(([^)]*)\)", page)
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]*)\)", page))
    extras = set(PROJECT["optional-dependencies"])
    assert {"gpu", "serve", "lab", "onnx", "onnx-gpu", "ray", "testing", "dev"} <= extras
    for extra in extras:
        assert f"Provides-Extra: {extra}\n" in metadata


def needed(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Return what a distribution with these extras requires here, and with which extras."""
    environments = [{"extra": extra} for extra in ("", *extras)]
    for wanted in map(Requirement, requires(name) or ()):
        if wanted.marker is None or any(map(wanted.marker.evaluate, environments)):
            yield canonicalize_name(wanted.name), frozenset(wanted.extras)


def test_everything_that_is_installed_is_pinned_and_fits_the_oldest_python() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {
        canonicalize_name(name): pin for name, _, pin in (s.partition("==") for s in lines) if pin
    }
    found, left = set(), {("paged-core", frozenset({"dev"}))}
    while left:
        found |= left
        left = {wanted for name, extras in left for wanted in needed(name, extras)} - found
        left = {wanted for wanted in left if not wanted[0].startswith(PINNED_BY_TORCH)}
    assert {name for name, _ in found} - pinned.keys() == {"paged-core"}
    oldest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    for each in distributions():
        if pinned.get(canonicalize_name(each.name)) == each.version.partition("+")[0]:
            assert oldest in SpecifierSet(each.metadata.get("Requires-Python") or ""), each.name
