"""Executor ``tensor_parallel``: ranks that end, hang, raise alone, and are started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from emulation.accelerator import EMULATED_LOCAL
from integration.rank_faults import FAULTY
from paged_backends.executors.workers import WorkersExecutor, shares_of_cores
from paged_core import LLM, SamplingParams
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import CheckpointError, ExecutorLost, SettingsError, UnsupportedModel
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import settings_class
from paged_testing import registry_with

pytestmark = pytest.mark.usefixtures("compiled_kernels")

SMALL: dict[str, Any] = {
    "model": "demo",
    "dtype": "float32",
    "threads": 1,
    "num_blocks": 32,
    "block_size": 4,
    "max_model_len": 48,
}
LONG = 60
"""Seconds after which a test gives up."""
RANKS = pytest.mark.parametrize("rank", [0, 1])


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def shared_memory() -> set[str]:
    return (
        {path.name for path in Path("/dev/shm").iterdir()} if Path("/dev/shm").is_dir() else set()
    )


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """No process, no file, and nothing in shared memory."""
    before, files = {child.pid for child in children()}, psutil.Process().num_fds()
    memory = shared_memory()
    yield
    assert not [child for child in children() if child.pid not in before]
    assert psutil.Process().num_fds() <= files
    assert shared_memory() <= memory


@contextmanager
def ranks_of(inner: Any = "local", size: int = 2, **options: Any) -> Iterator[Engine]:
    """An engine on ranks, whose model may be at fault."""
    executor = {"name": "tensor_parallel", "ranks": size, "inner": inner, **options}
    registry = registry_with(FAULTY)
    settings = settings_class(registry)(**{**SMALL, "executor": executor})
    engine = build_engine(settings, registry)
    try:
        yield engine
    finally:
        engine.close()


def faulty(**faults: Any) -> dict[str, Any]:
    return {"name": "faulty_rank", **faults}


def pids_of(engine: Engine) -> list[int]:
    executor = engine.executor
    assert isinstance(executor, WorkersExecutor)
    return [worker.pid for worker in executor._workers]


def serve(engine: Engine, name: str, **asked: Any) -> SequenceGroup:
    sampling = SamplingParams(**{"max_tokens": 6, "ignore_eos": True, **asked})
    group = engine.add(Request(id=name, prompt=(5, 7, 11, 13), sampling=sampling))
    while engine.has_unfinished:
        engine.step()
    return group


def error_of(group: SequenceGroup) -> str:
    assert group.sequences[0].finish_reason is FinishReason.ERROR
    return group.sequences[0].error or ""


@contextmanager
def soon(number: int, rank: int, sent_when: Callable[[int], bool]) -> Iterator[None]:
    """Send a signal to a rank once it is where it is awaited to be."""
    before = {child.pid for child in children()}

    def send() -> None:
        end = monotonic() + LONG
        while monotonic() < end:
            started = sorted(child.pid for child in children() if child.pid not in before)
            if len(started) > rank and sent_when(started[rank]):
                os.kill(started[rank], number)
                return
            sleep(0.01)

    thread = Thread(target=send)
    thread.start()
    yield
    thread.join()


def has_begun(folder: Path) -> Callable[[int], bool]:
    """Whether a rank waits where it was told to."""
    return lambda pid: (folder / str(pid)).exists()


ENDS = {
    signal.SIGKILL: r"rank {} of 2 \(pid \d+\) was killed by SIGKILL {}",
    signal.SIGSTOP: r"rank {} of 2 \(pid \d+\) has answered no heartbeat for 2 s {}.*'stopped'",
}
SIGNALS = pytest.mark.parametrize("number", ENDS, ids=["SIGKILL", "SIGSTOP"])


@RANKS
@SIGNALS
class TestARank:
    """That ends or stops ends them all; the error names it."""

    def test_at_the_start(self, rank: int, number: int, tmp_path: Path) -> None:
        message = ENDS[signal.Signals(number)].format(rank, "while it started")
        with (
            soon(number, rank, has_begun(tmp_path)),
            pytest.raises(ExecutorLost, match=message),
            ranks_of(faulty(start=LONG, folder=str(tmp_path)), heartbeat_timeout=2.0),
        ):
            raise AssertionError("they have started")

    def test_in_a_step(self, rank: int, number: int, tmp_path: Path) -> None:
        """The step fails on all of them, in time; the next one starts all again, as large."""
        faults = faulty(hangs=rank, folder=str(tmp_path))
        with ranks_of(faults, heartbeat_timeout=2.0) as engine:
            first, capacity = pids_of(engine), engine.capacity
            (tmp_path / "hang").touch()
            children_before = {*first}

            def send() -> None:
                end = monotonic() + LONG
                while not has_begun(tmp_path)(first[rank]) and monotonic() < end:
                    sleep(0.01)
                os.kill(first[rank], number)

            thread = Thread(target=send)
            thread.start()
            started = monotonic()
            error = error_of(serve(engine, "A"))
            thread.join()
            assert monotonic() - started < 30
            assert re.search(ENDS[signal.Signals(number)].format(rank, "in a step"), error), error
            assert not [pid for pid in children_before if psutil.pid_exists(pid)]
            (tmp_path / "hang").unlink()
            assert serve(engine, "B").sequences[0].error is None
            assert not {*pids_of(engine)} & children_before
            assert engine.executor.start() == capacity

    def test_between_steps(self, rank: int, number: int) -> None:
        with ranks_of(heartbeat_timeout=2.0) as engine:
            os.kill(pids_of(engine)[rank], number)
            assert f"rank {rank} of 2" in error_of(serve(engine, "A"))
            assert serve(engine, "B").sequences[0].error is None

    def test_at_the_close(self, rank: int, number: int) -> None:
        with ranks_of(heartbeat_timeout=2.0) as engine:
            os.kill(pids_of(engine)[rank], number)
            started = monotonic()
            engine.close()
            assert monotonic() - started < 30


@RANKS
class TestARankAlone:
    """That raises, and leaves the others waiting for it."""

    def test_while_it_starts(self, rank: int) -> None:
        with (
            pytest.raises(SettingsError, match=f"rank {rank} has no memory"),
            ranks_of(faulty(refuses=rank)),
        ):
            raise AssertionError("they have started")

    def test_in_a_step(self, rank: int) -> None:
        with ranks_of(faulty(raises=[rank])) as engine:
            error = error_of(serve(engine, "A", max_tokens=1))
            assert f"rank {rank} of 2" in error
            assert "a deliberate failure" in error
            assert serve(engine, "B", max_tokens=1).sequences[0].error is not None


def test_what_all_ranks_raise_ends_the_requests_of_the_step_alone() -> None:
    with ranks_of(faulty(raises=[0, 1])) as engine:
        first = pids_of(engine)
        assert "a deliberate failure" in error_of(serve(engine, "A"))
        assert pids_of(engine) == first


def test_an_operation_that_waits_too_long_ends_the_ranks(tmp_path: Path) -> None:
    """Although they answer heartbeats."""
    (tmp_path / "hang").touch()
    faults = faulty(hangs=1, folder=str(tmp_path))
    with ranks_of(faults, communicator_timeout=15.0) as engine:
        error = error_of(serve(engine, "A"))
        assert "rank 0 of 2" in error
        assert "rank 1 of 2 did not come within 15 s" in error
        (tmp_path / "hang").unlink()
        assert serve(engine, "B").sequences[0].error is None


def test_a_step_that_takes_too_long_ends_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    with ranks_of(faulty(hangs=0, folder=str(tmp_path)), step_timeout=2.0) as engine:
        assert "has not finished after 2 s in a step" in error_of(serve(engine, "A"))


@pytest.mark.parametrize("communicator", ["shm", "gloo"])
def test_one_rank_or_several_say_the_same(communicator: str) -> None:
    prompts, found = ["2 + 2 =", "What is a block table?"], []
    sampling = SamplingParams(temperature=0.8, top_k=20, seed=1, max_tokens=12, logprobs=1)
    for size in (1, 2):
        executor = {"name": "tensor_parallel", "ranks": size}
        with LLM(executor=executor, communicator=communicator, **SMALL) as llm:
            assert llm.engine.executor.runs_in_background
            outputs = llm.generate(prompts, sampling) + llm.generate(prompts)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


def test_steps_are_launched_on_ranks_too() -> None:
    """As on a GPU: they sample there, and the first one's tokens count."""
    found = []
    for executor in (
        "local",
        {"name": "tensor_parallel", "inner": "emulated"},
    ):
        with LLM(executor=executor, registry=registry_with(EMULATED_LOCAL), **SMALL) as llm:
            asked = [
                SamplingParams(max_tokens=10),
                SamplingParams(max_tokens=10, temperature=1.0, seed=3),
                SamplingParams(max_tokens=10, temperature=1.0, seed=3, logprobs=1),
            ]
            outputs = llm.generate(["2 + 2 =", "Hello", "What is a block"], asked)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


def test_errors_of_the_start_are_those_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        LLM(executor="tensor_parallel", model=str(tmp_path))
    with pytest.raises(UnsupportedModel, match="ranks"):
        LLM(executor={"name": "tensor_parallel", "ranks": 7}, **SMALL)


@pytest.mark.parametrize("inner", ["process", "tensor_parallel"])
def test_ranks_of_executors_in_other_processes_are_refused(inner: str) -> None:
    with pytest.raises(SettingsError, match=r"executor\.inner: a part cannot be"):
        LLM(executor={"name": "tensor_parallel", "inner": inner}, **SMALL)


def test_memory_that_is_not_said_is_what_fits_on_every_rank() -> None:
    given = {key: value for key, value in SMALL.items() if key != "num_blocks"}
    with LLM(executor="tensor_parallel", kv_cache_memory="1MiB", **given) as llm:
        assert llm.engine.capacity.num_blocks > 0
        assert llm.generate(["2 + 2 ="])[0].outputs[0].text == " 4"


class TestCores:
    def test_are_dealt_evenly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
        core_of = "paged_backends.executors.workers._core_of"
        monkeypatch.setattr(core_of, lambda cpu: (str(cpu % 4),))  # two threads of each core
        assert shares_of_cores(2) == [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]
        assert shares_of_cores(3) == [[[0, 4]], [[1, 5]], [[2, 6]]]
        assert shares_of_cores(5) == [[]] * 5

    def test_belong_to_one_rank_each(self) -> None:
        cores = len([core for share in shares_of_cores(1) for core in share])
        if cores < 2:
            pytest.skip("there is one core")
        with ranks_of("memory", pin_cores=True) as engine:
            first, second = ({*psutil.Process(pid).cpu_affinity()} for pid in pids_of(engine))
        assert first and second and not first & second
        with ranks_of("memory") as engine:  # `threads` is set, as for several engines
            (pid, _) = pids_of(engine)
            assert psutil.Process(pid).cpu_affinity() == psutil.Process().cpu_affinity()


PROGRAM = """
    import os, sys
    from paged_core import LLM

    llm = LLM(
        executor={{"name": "tensor_parallel"}}, num_blocks=8, max_model_len=32, threads=1
    )
    print(*(worker.pid for worker in llm.engine.executor._workers), flush=True)
    {}
"""
ENDINGS = {
    "killed": "os.kill(os.getpid(), 9)",
    "killed while a rank is stopped": (
        "os.kill(llm.engine.executor._workers[1].pid, 19); os.kill(os.getpid(), 9)"
    ),
    "end": "",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_all_ranks_end_with_the_process_that_started_them(ending: str) -> None:
    program = textwrap.dedent(PROGRAM).format(ENDINGS[ending])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            for pid in map(int, parent.stdout.readline().split()):
                with suppress(psutil.NoSuchProcess):  # it has ended already
                    psutil.Process(pid).wait(LONG)
                assert not psutil.pid_exists(pid)
        finally:
            parent.kill()
