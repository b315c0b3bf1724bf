"""Peers in other virtual environments, where neither our package nor its dependencies exist."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from paged_core.errors import EngineError, SettingsError
from paged_plugins.bench.comparison import warm_up
from paged_plugins.bench.peer_choice import installed_peers, named_peers
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peer_python import PeerPython
from paged_plugins.bench.peers.table import PEERS
from paged_plugins.bench.workloads import Item
from unit import foreign_python
from unit.bench_tasks import bench_task


@pytest.fixture
def python(tmp_path: Path) -> str:
    return foreign_python.make(tmp_path)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


class TestPython:
    def test_finds_what_is_installed_there_alone(self, python: str) -> None:
        assert PeerPython(python).has("vllm")
        assert not PeerPython(python).has("paged_core")
        assert not PeerPython(python).has("psutil")
        assert PeerPython().has("psutil")

    def test_nothing_meant_for_ours_reaches_it(
        self, python: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", "/somewhere")
        assert "PYTHONPATH" not in PeerPython(python).environ({})
        assert PeerPython().environ({"A": "1"}).items() >= {
            ("PYTHONPATH", "/somewhere"),
            ("A", "1"),
        }

    def test_a_package_in_the_working_folder_does_not_count(
        self, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "llama_cpp").mkdir()
        monkeypatch.chdir(tmp_path)
        assert not PeerPython(python).has("llama_cpp")

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("echo rubbish", r"python3 does not work as a Python \(JSONDecodeError"),
            ("exit 4", r"python3 does not work as a Python \(CalledProcessError"),
            ("echo '[[3, 9], \"/old\", []]'", r"python3 is Python 3\.9, and .* needs 3\.11 or"),
        ],
    )
    def test_one_that_will_not_do(self, body: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=message):
            PeerPython(script(tmp_path / "python3", body))

    def test_none_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"none does not work .*FileNotFoundError.*; give"):
            PeerPython(str(tmp_path / "none"))


class TestProcess:
    def test_runs_with_the_standard_library_alone(
        self, python: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        items = [Item([1, 2, 3], 2), Item([4], 1), Item([5], 3, follows=0)]
        with PeerProcess(PEERS["vllm"], bench_task(cache_gib=5), PeerPython(python)) as engine:
            answer = engine.run(items)
        assert engine.version == "paged_plugins 5 GiB"
        assert engine.vocab_size is None
        assert answer["outputs"] == [[6, 6], [4], [23, 23, 23]]
        assert answer["elapsed"] > 0
        assert answer["peak_memory"] > 1 << 20
        assert "what libraries print, 64 tokens" in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("broken", r"vllm: ValueError: cannot load it"),
            ("dead", r"vllm ended with status 3 and without an answer"),
        ],
    )
    def test_one_that_does_not_start(self, model: str, message: str, python: str) -> None:
        with pytest.raises(EngineError, match=message):
            PeerProcess(PEERS["vllm"], bench_task(model), PeerPython(python))

    def test_settles(self, python: str) -> None:
        messages: list[str] = []
        with PeerProcess(PEERS["vllm"], bench_task(cache_gib=5), PeerPython(python)) as engine:
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
        with PeerProcess(PEERS["vllm"], bench_task(cache_gib=5), PeerPython(python)) as engine:
            assert not engine.settle(0.1)
            warm_up([engine], messages.append)
        (line,) = messages
        assert line.startswith("vllm uses the processor while it waits for requests")


class TestChoice:
    def test_of_another_environment(self, python: str) -> None:
        (chosen,) = named_peers([f"vllm={python}"], "m", "float32")
        assert (chosen.peer, chosen.python.path) == (PEERS["vllm"], python)

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
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(PeerPython, "has", lambda _, package: package != "vllm")
        model, messages = str(tmp_path / "model"), []
        chosen = installed_peers(model, "bfloat16", messages.append)
        names = ["transformers_static", "transformers_single", "transformers_continuous"]
        assert [one.peer.name for one in chosen] == names
        assert {one.python.path for one in chosen} == {sys.executable}
        assert [line.partition(":")[0] for line in messages] == [
            "left out nano_vllm",
            "left out openvino",
            "left out llama_cpp",
        ]
        assert f"{model}.bf16.gguf does not exist; make it with" in messages[-1]
        assert not any("\n" in line for line in messages)
        with pytest.raises(SettingsError, match=r"peer 'llama_cpp' has no checkpoint: .*\.gguf"):
            named_peers(["llama_cpp"], model, "bfloat16")
        (tmp_path / "model.bf16.gguf").touch()
        assert named_peers(["llama_cpp"], model, "bfloat16")
        assert "llama_cpp" in {
            one.peer.name for one in installed_peers(model, "bfloat16", messages.append)
        }
