"""Engines as arms of a study, each in a process of its own; the others in other environments."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration import tiny_models
from paged_core.cli import main
from paged_core.errors import EngineError, SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.measures import ServiceLevel, measures
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.lab.tasks.peers import (
    OURS,
    PEERS,
    Choice,
    PeerProcess,
    ResidentEngines,
    ask,
    load_of,
    named_peers,
)
from paged_plugins.lab.tasks.task import Task
from paged_plugins.workloads.batch import NAMED, BatchWorkload, Draw, by_turn
from paged_plugins.workloads.named import workload_spec
from paged_plugins.workloads.request import WorkloadRequest
from unit import foreign_python
from unit.bench_tasks import load

pytestmark = pytest.mark.heavy


CHAT: list[Draw] = [([5, 6, 7], 3, None), ([8, 9], 5, None), ([4], 2, 1), ([3, 2], 4, 0)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture
def python(tmp_path: Path) -> str:
    return foreign_python.make(tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED, "W7", BatchWorkload("W7", lambda _: CHAT))


@pytest.mark.usefixtures("small")
def test_engines_are_arms_of_one_comparison(
    model: str, python: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "W7", "--model", model, "--dtype", "float32", "--num-blocks", "32"]
    command += ["--threads", "1", "--seeds", "1", "--vary", "evictor=lru,fifo", "--json"]
    command += ["--peer", "transformers_static", "--peer", f"vllm={python}"]
    command += ["--output", str(tmp_path / "results")]
    assert main(command, {"PATH": ""}) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    arms = ["evictor=lru", "evictor=fifo", "transformers_static", "vllm"]
    assert [each["arm"] for each in found["arms"]] == arms
    assert {each["compared_with"] for each in found["arms"]} == {arms[0]}
    kept = load_results(tmp_path / "results")
    assert {run.arm for run in kept.runs if kept.record(run.arm, "W7", run.seed)} == {*arms}
    for run in found["runs"]:
        assert run["requests"] == 4
        assert run["measures"]["throughput_tokens_per_s"] > 0
        assert run["measures"]["peak_memory_mib"] > 1
        assert ("ttft_ms_p50" in run["measures"]) is run["arm"].startswith("evictor")
    for arm in arms[1:3]:
        assert f"{arm}: 4 of 4 answers have the tokens of the first arm's" in err
    assert "vllm: peer 4 GiB, started in " in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "there is nothing to compare; give --vary or --peer"),
        (["--peer", "vllm"], "--model demo is known to this engine only"),
        (["--model", "x", "--peer", "none", "--dtype", "float32"], "no peer is called 'none'"),
        (["--model", "x", "--peer", "transformers_static"], "--dtype auto may select"),
        (
            [
                *("--model", "x", "--peer", "transformers_static", "--dtype", "float32"),
                *("--temperature", "0.6"),
            ],
            "it is run greedily only",
        ),
    ],
)
def test_refusals(options: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "W2", *options], {"PATH": ""}) == 2
    assert message in capfd.readouterr().err


def test_a_workload_with_arrivals_is_refused() -> None:
    settings = EngineSettings(model="m", dtype="float32")
    with pytest.raises(SettingsError, match="are given all requests at once"):
        load_of(settings, [workload_spec("chat")], device="cpu", temperature=0.0)


@pytest.mark.parametrize(
    ("names", "memory", "length", "gib"),
    [("W1,W2", None, 1024, 4), ("W5", "2GiB", 2048, 2), ("W7,W4", "100MiB", 1024, 1)],
)
def test_there_is_room_for_the_longest_request(
    names: str, memory: str | None, length: int, gib: int
) -> None:
    settings = EngineSettings(model="m", dtype="float32", kv_cache_memory=memory)
    workloads = [workload_spec(name) for name in names.split(",")]
    found = load_of(settings, workloads, device="cpu", temperature=0.0)
    assert (found.max_model_len, found.cache_gib) == (length, gib)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return str(path)


class TestPython:
    """Questions to the environment of a peer."""

    def test_finds_what_is_installed_there_alone(
        self, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "llama_cpp").mkdir()
        monkeypatch.chdir(tmp_path)
        names = ("vllm", "transformers_static", "llama_cpp")
        there = [ask(PEERS[name], python, "m", "float32", 0.0)["installed"] for name in names]
        assert there == [True, False, False]
        assert ask(OURS, None, "m", "float32", 0.0)["installed"]

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
            ask(PEERS["vllm"], script(tmp_path / "python3", body), "m", "float32", 0.0)

    @pytest.mark.parametrize(
        ("named", "message"),
        [
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

    def test_a_checkpoint_that_is_missing(self, python: str, tmp_path: Path) -> None:
        (tmp_path / "packages" / "llama_cpp.py").touch()
        model = str(tmp_path / "model")
        with pytest.raises(SettingsError, match=r"'llama_cpp' has no checkpoint: .*bf16\.gguf"):
            named_peers([f"llama_cpp={python}"], model, "bfloat16")
        (tmp_path / "model.bf16.gguf").touch()
        (chosen,) = named_peers([f"llama_cpp={python}"], model, "bfloat16")
        assert (chosen.peer, chosen.python) == (PEERS["llama_cpp"], python)


class TestProcess:
    """One engine, by the protocol."""

    def test_runs_with_the_standard_library_alone(
        self, python: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        items: list[Draw] = [([1, 2, 3], 2, None), ([4], 1, None), ([5], 3, 0)]
        firsts = BatchWorkload("chat", lambda _: items).requests()
        with PeerProcess(Choice(PEERS["vllm"], python), load(cache_gib=5)) as engine:
            answer = engine.run(firsts)
            assert engine.settle(5)
        assert (engine.version, engine.vocab_size) == ("peer 5 GiB", None)
        assert answer["outputs"] == [[6, 6], [4], [23, 23, 23]]
        assert answer["elapsed"] > 0
        assert answer["times"] is None
        assert "what libraries print, 64 tokens" in capfd.readouterr().err

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("broken", r"vllm: ValueError: cannot load it"),
            ("dead", r"vllm \(pid \d+\) ended with exit status 3 and without an answer"),
        ],
    )
    def test_one_that_does_not_start(self, name: str, message: str, python: str) -> None:
        with pytest.raises(EngineError, match=message):
            PeerProcess(Choice(PEERS["vllm"], python), load(name))

    @pytest.mark.long
    def test_one_that_fails_says_why(self, model: str) -> None:
        settings = {"model": model, "dtype": "float32", "threads": 1, "num_blocks": 32}
        far = [WorkloadRequest(id="0", prompt=((100_000,),), output=2)]
        with (
            PeerProcess(Choice(OURS), load(model, settings=settings)) as ours,
            pytest.raises(EngineError, match="vocabulary"),
        ):
            ours.run(far)
        with pytest.raises(EngineError, match=r"serves requests of \d+ tokens, and the longest"):
            PeerProcess(Choice(OURS), load(model, settings=settings, longest_request=1 << 20))

    def test_an_interrupted_comparison_leaves_no_process(self, python: str) -> None:
        choice = Choice(PEERS["vllm"], python)
        with pytest.raises(KeyboardInterrupt), PeerProcess(choice, load()) as engine:
            process = psutil.Process(engine._child.pid)
            raise KeyboardInterrupt
        assert not process.is_running()

    @pytest.mark.skipif(sys.platform != "linux", reason="Linux ends a process with its parent")
    def test_a_comparison_that_is_killed_leaves_no_process(self, python: str) -> None:
        program = (
            "import os\n"
            "from unit.bench_tasks import load\n"
            "from paged_plugins.lab.tasks.peers import PEERS, Choice, PeerProcess\n"
            f"choice = Choice(PEERS['vllm'], {python!r})\n"
            "print(PeerProcess(choice, load())._child.pid, flush=True)\n"
            "os.kill(os.getpid(), 9)\n"
        )
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            check=False,
        )
        assert done.returncode == -9, done.stderr
        pid = int(done.stdout)
        alive = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
        assert not psutil.wait_procs(alive, timeout=10)[1]


class Engine:
    """Answers at once, and notes when it was its turn."""

    version, vocab_size, start_seconds, cache_written = "1", 50, 1.5, None

    def __init__(self, name: str, order: list[str], extra: int = 0, *, busy: bool = False) -> None:
        self.name, self._order, self._extra, self._busy = name, order, extra, busy
        self._took = itertools.count(1)

    def run(self, firsts: Sequence[WorkloadRequest]) -> dict[str, Any]:
        self._order.append(self.name)
        outputs = [[1] * (request.output + self._extra) for request, _ in by_turn(firsts)]
        return {"elapsed": next(self._took), "peak_memory": 5 << 20, "outputs": outputs}

    def settle(self) -> bool:
        self._order.append("rest")
        return not self._busy

    def __enter__(self) -> Engine:
        self._order.append("start")
        return self

    def __exit__(self, *_: object) -> None:
        self._order.append("end")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_engines_take_turns_and_one_that_fails_stops_no_other(
    one_at_a_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    engines = {
        "a": Engine("a", order),
        "b": Engine("b", order, busy=True),
        "longer": Engine("longer", order, extra=1),
    }

    def started(choice: Choice, _: object) -> Engine:
        if choice.name == "broken":
            raise EngineError("no memory")
        return engines[choice.name]

    monkeypatch.setattr("paged_plugins.lab.tasks.peers.PeerProcess", started)
    arms = ["a", "b", "longer", "broken"]
    settings = EngineSettings(model="m", dtype="float32")
    tasks = [
        Task(arm=arm, settings=settings, workload=workload_spec("W7"), seed=seed)
        for seed in range(2)
        for arm in arms
    ]
    told: list[str] = []
    choices = {arm: Choice(OURS, label=arm) for arm in arms}
    run = ResidentEngines(choices, load(), one_at_a_time=one_at_a_time, tell=told.append)
    ran = {(each.task.arm, each.task.seed): each for each in run(tasks)}
    assert len(ran) == len(tasks)
    assert ran["broken", 1].problem == "no memory"
    assert str(ran["longer", 0].problem).startswith("longer generated 4 tokens instead of 3")
    for seed in range(2):
        record = ran["a", seed].record
        assert record is not None
        found = measures(record, ServiceLevel())
        assert found["throughput_tokens_per_s"] == 14 / (seed + 2)  # the first was the warm-up
        assert "ttft_ms_p50" not in found
    assert any(line.startswith("b uses the processor while it waits") for line in told)
    assert "b: 4 of 4 answers have the tokens of the first arm's" in told
    alone = [*("start", "a", "rest", "a", "rest", "a", "rest", "end"), "start", "b"]
    together = [*("start", "a", "rest", "start", "b", "rest", "start", "longer", "rest"), "a"]
    expected = alone if one_at_a_time else together
    assert order[: len(expected)] == expected
