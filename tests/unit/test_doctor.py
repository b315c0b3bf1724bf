"""``paged-core doctor``: what it says about the machine, the components and the plugins."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paged_core.cli import main
from paged_core.plugins.registry import Plugin, Registry
from paged_plugins import machine

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking torch takes seconds, and has a test of its own."""
    monkeypatch.setattr(machine, "describe_torch", lambda: {"version": None})


def doctor(capsys: Capture, *argv: str, **environ: str) -> tuple[str, str]:
    """Run the command; return what it prints, and its warnings."""
    named = {f"PAGED_CORE_{key}": value for key, value in environ.items()} or {"PATH": ""}
    assert main(["doctor", *argv], named) == 0
    return capsys.readouterr()


def found(capsys: Capture) -> dict[str, Any]:
    out, err = doctor(capsys, "--json")
    assert err == ""
    answer: dict[str, Any] = json.loads(out)
    assert set(answer) == {"machine", "components", "broken_plugins", "conflicts"}
    return answer


@pytest.mark.usefixtures("without_torch")
def test_says_how_a_component_would_serve(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registry, "unavailable_reason", lambda *_: None)
    monkeypatch.setattr("paged_backends.kernels.cpu.availability.details", lambda: "with wings")
    assert "yes: with wings" in doctor(capsys)[0]

    def fails() -> str:
        raise OSError("no wings")

    monkeypatch.setattr("paged_backends.kernels.cpu.availability.details", fails)
    components = found(capsys)["components"]
    assert {one["commands"] == [] for one in components} == {True}
    details = {(one["slot"], one["name"]): one["details"] for one in components}
    assert details["attention", "cpu"].startswith("its details failed: OSError: no wings (at ")
    assert details["attention", "torch"] == ""


@pytest.mark.usefixtures("without_torch")
def test_says_why_a_component_cannot_serve_and_which_commands_would_help(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reasons = {
        "torch": "`torch` is not there; `pip install torch` installs it",
        "cpu": "no compiler; `pip install torch`, then `apt-get install g++`",
    }
    monkeypatch.setattr(Registry, "unavailable_reason", lambda _, part: reasons.get(part.name))
    file = tmp_path / "found.json"
    out, _ = doctor(capsys, "--json", "--output", str(file), CACHE_DIR=str(tmp_path))
    assert file.read_text() == out
    answer = json.loads(out)
    assert {"python", "platform", "cpu", "memory", "torch", "cuda"} <= set(answer["machine"])
    assert answer["machine"]["cache_dir"] == str(tmp_path)
    assert {one["name"]: one["reason"] for one in answer["components"] if one["reason"]} == reasons
    commands = {one["name"]: one["commands"] for one in answer["components"] if one["reason"]}
    assert commands["torch"] == ["pip install torch"]
    assert commands["cpu"] == ["pip install torch", "apt-get install g++"]
    text = doctor(capsys)[0]
    assert f"no: {reasons['cpu']}" in re.sub(r"\s+", " ", text)
    lines = [re.split("  +", line.strip()) for line in text.splitlines()]
    table = {line[0]: line[-1] for line in lines if len(line) > 1}
    assert table["pip install torch"] == "attention torch, attention cpu"
    assert table["apt-get install g++"] == "attention cpu"


@pytest.mark.usefixtures("without_torch")
def test_mentions_broken_plugins_and_conflicts(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Registry.discover()
    lru = installed.get("evictor", "lru")
    more = (
        Plugin("old", "dist-old", "1").broken("too old"),
        Plugin("twin", "dist-twin", "2", components=(lru,)),
    )
    monkeypatch.setattr(Registry, "discover", lambda **_: Registry((*installed.plugins, *more)))
    monkeypatch.setattr(Registry, "unavailable_reason", lambda *_: None)
    answer = found(capsys)
    assert answer["broken_plugins"] == [
        {"name": "old", "distribution": "dist-old", "version": "1", "reason": "too old"}
    ]
    assert len(answer["conflicts"]) == 1
    warnings = doctor(capsys)[1]
    assert "warning: plugin 'old' (dist-old 1) is broken: too old\n" in warnings
    assert f"warning: {answer['conflicts'][0]}\n" in warnings


def test_the_machine_is_described_as_plain_data() -> None:
    described = machine.describe_host() | {"torch": machine.describe_torch()}
    assert json.loads(json.dumps(described)) == described
    assert described["python"]["executable"] == sys.executable
    assert described["cpu"]["model"] == machine.cpu_model()
    assert described["memory"]["total_bytes"] >= described["memory"]["available_bytes"]
    assert described["torch"]["threads"] > 0


class TestCudaToolkit:
    @pytest.fixture(autouse=True)
    def nothing_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CUDA_HOME", raising=False)
        monkeypatch.delenv("CUDA_PATH", raising=False)
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(machine, "_USUAL", Path("/nowhere"))
        monkeypatch.setattr(machine, "find_spec", lambda _: None)

    def test_there_is_none(self) -> None:
        assert machine.cuda_folder() is machine.nvcc() is machine.nvrtc() is None

    def test_of_the_toolkit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiler = program(tmp_path / "bin", "nvcc")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        assert machine.nvcc() == compiler
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
        library = tmp_path / "lib64" / "libnvrtc.so.13"
        library.parent.mkdir()
        library.touch()
        assert (machine.cuda_folder(), machine.nvcc()) == (tmp_path, compiler)
        assert machine.nvrtc() == library
        assert machine._nvcc() == f"{compiler}, release 13.0, V13.0.88"

    def test_of_packages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library = tmp_path / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
        library.parent.mkdir(parents=True)
        library.touch()
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
        monkeypatch.setattr(machine, "find_spec", lambda _: spec)
        assert machine.nvrtc() == library


def program(folder: Path, name: str) -> Path:
    folder.mkdir()
    path = folder / name
    path.write_text("#!/bin/sh\necho 'nvcc: NVIDIA'\necho 'Cuda, release 13.0, V13.0.88'\n")
    path.chmod(0o755)
    return path


def test_torch_that_cannot_be_asked_is_a_problem_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" in machine.describe_torch()["problem"]
    monkeypatch.setattr(machine, "_installed", lambda _: None)
    assert machine.describe_torch()["problem"] == "not installed; `pip install torch`"
