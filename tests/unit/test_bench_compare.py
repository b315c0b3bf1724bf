"""``bench compare``: engines in processes of their own, which take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration import tiny_models
from paged_core.cli import main
from paged_core.errors import EngineError
from paged_core.settings.schema import EngineSettings
from paged_plugins.bench import compare_command
from paged_plugins.bench.compare_command import memory, print_comparison, speeds, task_for
from paged_plugins.bench.comparison import compare
from paged_plugins.bench.peers import OURS, PEERS, Choice, PeerProcess, Task
from paged_plugins.bench.workloads import NAMED, BatchWorkload, Draw, by_turn
from paged_plugins.workloads.request import WorkloadRequest
from unit import foreign_python
from unit.bench_tasks import bench_task, runner

Capture = pytest.CaptureFixture[str]
run = runner("compare")

CHAT: list[Draw] = [([5, 6, 7], 3, None), ([8, 9], 5, None), ([4], 2, 1), ([3, 2], 4, 0)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_models.save("llama", tmp_path_factory.mktemp("llama")))


def own_task(model: str, **changes: Any) -> Task:
    """A task for our own engine, which reads ``settings`` alone."""
    settings = {"model": model, "dtype": "float32", "threads": 1, "num_blocks": 32}
    return bench_task(model, settings=settings, **changes)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMED, "W7", BatchWorkload("W7", lambda _: CHAT))
    monkeypatch.setattr("paged_plugins.bench.device._OTHER_BYTES", 1 << 20)
    monkeypatch.setattr("paged_plugins.bench.device._OTHER_SIZE", 64)


SMALL = ("--dtype", "float32", "--repeats", "1", "--num-blocks", "32", "--threads", "1")


@pytest.mark.usefixtures("small")
def test_all_generate_the_same(model: str, capfd: Capture, tmp_path: Path) -> None:
    argv = (*SMALL, "--model", model, "--workload", "W7", "--peer", "transformers_static")
    out = run(capfd, *argv, "--json", "--output", str(tmp_path / "rows"))
    (row,) = [json.loads(line) for line in out.splitlines()]
    assert (row["workload"], row["requests"], row["output_tokens"]) == ("W7", 4, 14)
    ours, other = row["contenders"]
    assert (ours["name"], other["name"]) == (OURS.name, "transformers_static")
    assert ours["ratio"] == ours["same_tokens"] == other["same_tokens"] == 1
    assert (row["best_peer"], row["ratio_to_best"]) == ("transformers_static", other["ratio"])
    assert (tmp_path / "rows").read_text() == out


@pytest.mark.usefixtures("small")
def test_a_drawn_workload(model: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_plugins.bench.compare_command.installed_peers", lambda *_: [])
    drawn = ("--num-requests", "3", "--input-len", "4:9", "--output-len", "2")
    argv = (*SMALL, "--model", model)
    (line,) = run(capfd, *argv, *drawn, "--json", "--write-cache").splitlines()
    row = json.loads(line)
    assert [one["cache_written"] for one in row["contenders"]] == [True]
    assert (row["workload"], row["requests"], row["output_tokens"]) == ("drawn", 3, 6)
    assert "give its number of requests" in run(capfd, *argv, "--input-len", "4", status=2)


@pytest.mark.usefixtures("small")
def test_this_engine_beside_itself(capfd: Capture) -> None:
    off = 'off={runner: {name: native, kernels: "off"}, attention: torch}'
    argv = (*SMALL, "--workload", "W7", "--variant", off, "--json")
    (line,) = run(capfd, *argv).splitlines()
    row = json.loads(line)
    ours, other = row["contenders"]
    assert (ours["name"], other["name"], row["best_peer"]) == (OURS.name, "off", "off")
    assert other["same_tokens"] == 1
    assert other["ratio"] != 1
    assert ours["cache_written"] is other["cache_written"] is False


@pytest.mark.usefixtures("small")
def test_a_peer_of_another_environment(model: str, capfd: Capture, tmp_path: Path) -> None:
    argv = (*SMALL, "--model", model, "--workload", "W7", "--repeats", "2")
    out = run(capfd, *argv, "--peer", f"vllm={foreign_python.make(tmp_path)}")
    lines = [line.split() for line in out.splitlines()]
    assert ["engine", "W7"] in lines
    assert any(line[:4] == ["vllm", "peer", "4", "GiB"] for line in lines)
    assert any(line[:5] == ["this", "engine", "/", "best", "other"] for line in lines)
    assert "Peak MiB" in out


@pytest.mark.usefixtures("small")
def test_what_has_been_measured_is_kept_when_the_rest_fails(
    model: str, capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fails_later(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) > 1:
            raise EngineError("it died")
        return compare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("paged_plugins.bench.compare_command.compare", fails_later)
    monkeypatch.setitem(NAMED, "W4", BatchWorkload("W4", lambda _: CHAT))
    argv = [*SMALL, "--model", model, "--workload", "W7,W4", "--output", str(tmp_path / "rows")]
    argv += ["--peer", f"vllm={foreign_python.make(tmp_path)}"]
    assert main(["bench", "compare", *argv], {"PATH": ""}) == 1
    out, err = capfd.readouterr()
    assert "it died" in err
    assert "not measured: W4" in err
    assert "best other" in out
    (line,) = (tmp_path / "rows").read_text().splitlines()
    assert json.loads(line)["workload"] == "W7"


def test_an_interrupted_comparison_leaves_no_process(model: str) -> None:
    with pytest.raises(KeyboardInterrupt), PeerProcess(Choice(OURS), own_task(model)) as ours:
        process = psutil.Process(ours._process.pid)
        raise KeyboardInterrupt
    assert not process.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_comparison_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from unit.bench_tasks import bench_task\n"
        "from paged_plugins.bench.peers import PEERS, Choice, PeerProcess\n"
        f"python = {foreign_python.make(tmp_path)!r}\n"
        "print(PeerProcess(Choice(PEERS['vllm'], python), bench_task())._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=False
    )
    assert done.returncode == -9, done.stderr
    _, alive = psutil.wait_procs(_those_alive(int(done.stdout)), timeout=10)
    assert not alive


def _those_alive(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "--model demo"),
        (("--model", "x"), "--dtype auto"),
        (("--model", "x", "--dtype", "float32", "--peer", "none"), "no peer is called 'none'"),
        (("--model", "x", "--dtype", "float32", "--workload", "W9"), "no workload is called 'W9'"),
        (
            ("--model", "x", "--dtype", "float32", "--output", "/no/folder/rows"),
            "there is no folder /no/folder; make it first",
        ),
        (("--variant", "torch={attention: torhc}"), "--variant torch: attention: no"),
        (("--variant", "torch"), "write NAME={KEY: VALUE}"),
        (("--variant", "torch=5"), "write NAME={KEY: VALUE}"),
        (("--variant", "torch={"), "torch={: not valid YAML"),
        (("--variant", "vllm={seed: 1}"), "'vllm' is another engine's name"),
        (("--variant", "a={seed: 1}", "--variant", "a={seed: 2}"), "'a' is another engine's name"),
        (("--variant", "a={seed: 1}"), "--dtype auto"),
    ],
)
def test_errors(argv: tuple[str, ...], message: str, capfd: Capture) -> None:
    assert message in run(capfd, *argv, status=2)


@pytest.mark.parametrize(
    ("longest", "folder", "message"),
    [
        (64, "none", r"paged_core: .*no folder"),
        (1 << 20, "", r"the engine serves requests of \d+ tokens, and the longest "),
    ],
)
def test_an_engine_that_cannot_serve_says_why(
    model: str, longest: int, folder: str, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        PeerProcess(Choice(OURS), own_task(str(Path(model, folder)), longest_request=longest))


def test_an_engine_that_fails_says_why(model: str) -> None:
    with (
        PeerProcess(Choice(OURS), own_task(model)) as ours,
        pytest.raises(EngineError, match="vocabulary"),
    ):
        ours.run([WorkloadRequest(id="0", prompt=((100_000,),), output=2)])


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_one_after_another_and_one_that_fails(
    model: str, capfd: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampled; the other engine cannot load its model."""
    broken = foreign_python.make(tmp_path)
    monkeypatch.setattr(compare_command, "task_for", _broken_for_others)
    argv = (*SMALL, "--model", model, "--workload", "W7", "--repeats", "2", "--one-at-a-time")
    options = ("--temperature", "0.6", "--peer", f"vllm={broken}", "--json")
    assert main(["bench", "compare", *argv, *options]) == 1
    out, err = capfd.readouterr()
    row = json.loads(out)
    ours, other = row["contenders"]
    assert len(ours["elapsed_s"]) == 2
    assert (row["temperature"], row["device"], row["best_peer"]) == (0.6, "cpu", None)
    assert "cannot load it" in other["error"]
    assert "left out vllm: " in err
    assert next(iter(list(speeds([row]))[1:])) == ["vllm", "failed"]
    assert list(memory([row]))[1] == ["vllm", "failed", "failed"]


def _broken_for_others(*arguments: Any, **options: Any) -> Task:
    """Our engine reads ``settings`` alone, where the model is a good one."""
    return replace(task_for(*arguments, **options), model="broken")


def test_an_engine_that_cannot_sample_is_refused(model: str, capfd: Capture) -> None:
    argv = ["--model", model, "--dtype", "float32", "--peer", "transformers_static"]
    assert "it is run greedily only" in run(capfd, *argv, "--temperature", "0.6", status=2)


class TestTask:
    @pytest.mark.parametrize(
        ("names", "length"), [("W1,W2", 1024), ("W5", 2048), ("W7,W4", 1024), ("W6", 1024)]
    )
    def test_there_is_room_for_the_longest_request(self, names: str, length: int) -> None:
        settings = EngineSettings(model="m", dtype="float32")
        workloads = [NAMED[name] for name in names.split(",")]
        assert task_for(settings, workloads).max_model_len == length

    @pytest.mark.parametrize(("asked", "gib"), [(None, 4), ("2GiB", 2), ("100MiB", 1)])
    def test_all_get_the_same_cache(self, asked: str | None, gib: int) -> None:
        settings = EngineSettings(model="m", dtype="float32", kv_cache_memory=asked)
        assert task_for(settings, [NAMED["W4"]]).cache_gib == gib

    def test_a_share_of_the_memory(self) -> None:
        settings = EngineSettings(model="m", dtype="float32", kv_cache_memory=1.0)
        assert task_for(settings, [NAMED["W4"]]).cache_gib >= 1


class PeerEngine:
    """Answers at once, and notes when it was its turn."""

    version, vocab_size, start_seconds = "1", 50, 1.5
    cache_written = None

    def __init__(self, name: str, elapsed: list[float], order: list[str], extra: int = 0) -> None:
        self.name = name
        self._elapsed, self._order, self._extra = iter(elapsed), order, extra

    def run(self, firsts: list[WorkloadRequest]) -> dict[str, Any]:
        self._order.append(self.name)
        outputs = [[1] * (request.output + self._extra) for request, _ in by_turn(firsts)]
        return {"elapsed": next(self._elapsed), "peak_memory": 5 << 20, "outputs": outputs}

    def settle(self) -> bool:
        self._order.append("rest")
        return True

    def __enter__(self) -> PeerEngine:
        self._order.append("start")
        return self

    def __exit__(self, *_: object) -> None:
        self._order.append("end")


def _cannot_start(*_: object) -> None:
    raise EngineError("no memory")


def compared(*engines: Any, repeats: int = 3) -> dict[str, Any]:
    row = compare(BatchWorkload("W7", lambda _: CHAT), engines, repeats, lambda: None)
    return row | {"model": "m", "dtype": "bfloat16", "repeats": repeats}


class TestRows:
    def test_they_take_turns_and_rest(self) -> None:
        order: list[str] = []
        names = (OURS.name, "a", "b")
        compared(*(PeerEngine(name, [1.0] * 3, order) for name in names))
        rest = iter(order)
        assert [name for name, then in zip(rest, rest, strict=True) if then == "rest"] == [
            *(OURS.name, "a", "b", "a", "b", OURS.name, "b", OURS.name, "a"),
        ]

    def test_medians_and_the_best_other(self) -> None:
        row = compared(
            PeerEngine(OURS.name, [2.0, 1.0, 9.0], []),
            PeerEngine("a", [8.0, 6.0, 7.0], []),
            PeerEngine("b", [5.0, 1.0, 5.0], []),
        )
        assert [one["output_tokens_per_s"] for one in row["contenders"]] == [7.0, 2.0, 2.8]
        assert [one["ratio"] for one in row["contenders"]] == [1.0, 3.5, 2.5]
        assert (row["best_peer"], row["ratio_to_best"]) == ("b", 2.5)
        assert row["contenders"][0]["elapsed_s"] == [2.0, 1.0, 9.0]

    def test_one_after_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        engines = {
            OURS.name: PeerEngine(OURS.name, [1.0, 2.0, 2.0], order),
            "transformers_static": PeerEngine("transformers_static", [9.0] * 3, order, extra=1),
            "vllm": PeerEngine("vllm", [1.0, 6.0, 4.0], order),
        }
        monkeypatch.setattr(compare_command, "PeerProcess", lambda some, _: engines[some.name])
        chosen = [OURS, *(PEERS[name] for name in list(engines)[1:])]
        workloads = [BatchWorkload("W7", lambda _: CHAT)]
        told: list[str] = []
        choices = [Choice(one) for one in chosen]
        (row,) = compare_command._alone(bench_task(), workloads, choices, 2, told.append)
        assert order == [
            *("start", OURS.name, "rest", OURS.name, OURS.name, "end"),
            *("start", "transformers_static", "rest", "transformers_static", "end"),
            *("start", "vllm", "rest", "vllm", "vllm", "end"),
        ]
        _, failed, other = row["contenders"]
        assert failed["error"].startswith("transformers_static generated 4 tokens instead of 3")
        assert told == [f"left out transformers_static: {failed['error']}"]
        assert (other["elapsed_s"], other["ratio"]) == ([6.0, 4.0], 2.5)
        assert (row["best_peer"], row["ratio_to_best"]) == ("vllm", 2.5)
        assert list(speeds([row]))[1] == ["transformers_static", "failed"]
        assert list(memory([row]))[1] == ["transformers_static", "failed", "failed"]
        monkeypatch.setattr(compare_command, "PeerProcess", _cannot_start)
        with pytest.raises(EngineError):
            list(compare_command._alone(bench_task(), workloads, choices[:1], 1, told.append))

    def test_another_number_of_tokens_is_an_error(self) -> None:
        with pytest.raises(EngineError, match="a generated 4 tokens instead of 3"):
            compared(PeerEngine(OURS.name, [1.0], []), PeerEngine("a", [1.0], [], 1), repeats=1)

    def test_the_table(self, capsys: Capture) -> None:
        row = compared(
            PeerEngine(OURS.name, [1.0] * 3, []),
            PeerEngine("a", [2.0] * 3, []),
            PeerEngine("b", [4.0] * 3, []),
        )
        rows = [row, row | {"workload": "W8", "ratio_to_best": 0.5}]
        assert list(speeds(rows)) == [
            [f"{OURS.name} 1", 14.0, 14.0],
            ["a 1", 7.0, 7.0],
            ["b 1", 3.5, 3.5],
            ["this engine / best other", "2.00", "0.50"],
        ]
        assert next(memory(rows)) == [f"{OURS.name} 1", 5, 5, 1.5]
        print_comparison(rows)
        out = capsys.readouterr().out
        assert out.startswith("m in bfloat16: output tokens/s, median of 3\n")
        assert ["engine", "W7", "W8"] in [line.split() for line in out.splitlines()]

    def test_without_others_there_is_no_best(self) -> None:
        row = compared(PeerEngine(OURS.name, [1.0] * 3, []))
        assert row["best_peer"] is row["ratio_to_best"] is None
        assert list(speeds([row])) == [[f"{OURS.name} 1", 14.0]]
