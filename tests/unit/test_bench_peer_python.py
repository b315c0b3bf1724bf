"""Peers in other virtual environments, where neither our package nor its dependencies exist."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from paged_core.errors import EngineError, SettingsError
from paged_plugins.bench.comparison import warm_up
from paged_plugins.bench.peers import (
    OURS,
    PEERS,
    Choice,
    PeerProcess,
    ask,
    installed_peers,
    named_peers,
)
from paged_plugins.workloads.request import WorkloadRequest, linked
from unit import foreign_python
from unit.bench_tasks import bench_task


@pytest.fixture
def python(tmp_path: Path) -> str:
    return foreign_python.make(tmp_path)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


def installed(name: str, python: str | None = None) -> bool:
    found = ask(OURS if name == OURS.name else PEERS[name], python, "m", "float32", 0.0)
    return bool(found["installed"])


class TestPython:
    def test_finds_what_is_installed_there_alone(self, python: str) -> None:
        assert installed("vllm", python)
        assert not installed(OURS.name, python)
        assert not installed("transformers_static", python)
        assert installed(OURS.name)
        assert installed("transformers_static")

    def test_nothing_meant_for_ours_reaches_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", "/somewhere")
        answer = '{"python": [3, 12], "installed": false, "problem": "'
        shown = f'printf \'{answer}%s"}}\' "$PYTHONPATH"'
        found = ask(PEERS["vllm"], script(tmp_path / "python3", shown), "m", "float32", 0.0)
        assert found["problem"] == ""
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
        assert ask(PEERS["vllm"], None, "m", "float32", 0.0)["problem"] == "/somewhere"

    def test_a_package_in_the_working_folder_does_not_count(
        self, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "llama_cpp").mkdir()
        monkeypatch.chdir(tmp_path)
        assert not installed("llama_cpp", python)

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("echo rubbish", r"python3 does not work as a Python \(JSONDecodeError"),
            ("exit 4", r"python3 does not work as a Python \(CalledProcessError"),
            ("echo '{\"python\": [3, 9]}'", r"python3 is Python 3\.9, and .* needs 3\.11 or"),
        ],
    )
    def test_one_that_will_not_do(self, body: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=message):
            installed("vllm", script(tmp_path / "python3", body))

    def test_none_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"none does not work .*FileNotFoundError.*; give"):
            installed("vllm", str(tmp_path / "none"))


class TestProcess:
    def test_runs_with_the_standard_library_alone(
        self, python: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        firsts = linked(
            (WorkloadRequest(id=name, prompt=(prompt,), output=output), follows)
            for name, prompt, output, follows in [
                ("0", (1, 2, 3), 2, None),
                ("1", (4,), 1, None),
                ("2", (5,), 3, "0"),
            ]
        )
        with PeerProcess(Choice(PEERS["vllm"], python), bench_task(cache_gib=5)) as engine:
            answer = engine.run(firsts)
        assert engine.version == "peer 5 GiB"
        assert engine.vocab_size is None
        assert answer["outputs"] == [[6, 6], [4], [23, 23, 23]]
        assert answer["elapsed"] > 0
        assert answer["peak_memory"] > 1 << 20
        assert "what libraries print, 64 tokens" in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("broken", r"vllm: ValueError: cannot load it"),
            ("dead", r"vllm \(pid \d+\) ended with exit status 3 and without an answer"),
        ],
    )
    def test_one_that_does_not_start(self, model: str, message: str, python: str) -> None:
        with pytest.raises(EngineError, match=message):
            PeerProcess(Choice(PEERS["vllm"], python), bench_task(model))

    def test_settles(self, python: str) -> None:
        messages: list[str] = []
        with PeerProcess(Choice(PEERS["vllm"], python), bench_task(cache_gib=5)) as engine:
            warm_up([engine], messages.append)
            assert engine.settle(5)
        assert messages == []
        assert engine.settle(0)  # it has ended, and uses nothing

    def test_names_the_peer_that_stays_busy(
        self, python: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        messages: list[str] = []
        used = itertools.count()  # a second of the processor with every look
        monkeypatch.setattr(PeerProcess, "_processor_seconds", lambda self: float(next(used)))
        with PeerProcess(Choice(PEERS["vllm"], python), bench_task(cache_gib=5)) as engine:
            assert not engine.settle(0.1)
            warm_up([engine], messages.append)
        (line,) = messages
        assert line.startswith("vllm uses the processor while it waits for requests")


class TestChoice:
    def test_of_another_environment(self, python: str) -> None:
        (chosen,) = named_peers([f"vllm={python}"], "m", "float32")
        assert (chosen.peer, chosen.python) == (PEERS["vllm"], python)

    @pytest.mark.parametrize(
        ("named", "message"),
        [
            (["none"], "no peer is called 'none'; there are transformers_static, .*llama_cpp"),
            (["vllm={python}", "vllm"], "peer 'vllm' is named twice"),
            (["vllm=/no/python"], "/no/python does not work as a Python"),
            (
                ["llama_cpp={python}"],
                "'llama_cpp' needs the package llama_cpp, and {python} does not find it; install "
                "it with `{python} -m pip install llama-cpp-python`, or .*--peer llama_cpp=PATH",
            ),
        ],
    )
    def test_what_is_missing(self, named: list[str], message: str, python: str) -> None:
        with pytest.raises(SettingsError, match=message.format(python=python)):
            named_peers([name.format(python=python) for name in named], "m", "float32")

    def test_a_checkpoint_that_is_missing(
        self, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "paged_plugins.bench.peers.find_spec", lambda package: None if package == "vllm" else 1
        )
        model, messages = str(tmp_path / "model"), []
        chosen = installed_peers(model, "bfloat16", messages.append)
        names = ["transformers_static", "transformers_single", "transformers_continuous"]
        assert [one.peer.name for one in chosen] == names
        assert {one.python for one in chosen} == {None}
        assert [line.partition(":")[0] for line in messages] == [
            "left out nano_vllm",
            "left out openvino",
            "left out llama_cpp",
        ]
        assert f"{model}.bf16.gguf does not exist; make it with" in messages[-1]
        assert not any("\n" in line for line in messages)
        (tmp_path / "packages" / "llama_cpp.py").touch()
        with pytest.raises(SettingsError, match=r"peer 'llama_cpp' has no checkpoint: .*\.gguf"):
            named_peers([f"llama_cpp={python}"], model, "bfloat16")
        (tmp_path / "model.bf16.gguf").touch()
        assert named_peers([f"llama_cpp={python}"], model, "bfloat16")
        assert "llama_cpp" in {
            one.peer.name for one in installed_peers(model, "bfloat16", messages.append)
        }
