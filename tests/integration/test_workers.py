"""Executor ``workers``: the same answers as in this process, and what happens when one is lost."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread, Timer
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from emulation.accelerator import EMULATED_LOCAL
from integration.slow_executor import DYING, FAULTY, SLOW, favour_token_9
from paged_backends.executors import workers
from paged_backends.executors.workers import WorkersExecutor, shares_of_cores
from paged_core import LLM
from paged_core.engine.contexts import ExecutorContext
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import (
    CheckpointError,
    EngineError,
    ExecutorLost,
    RequestError,
    SettingsError,
    UnsupportedModel,
)
from paged_core.plugins.registry import Registry
from paged_core.processes.channel import Channel
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import settings_class
from paged_testing import registry_with
from paged_testing.ranks import check_no_memory_left, named_memory
from unit.engines import without_place

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]

PROMPT = (5, 7, 11, 13, 17, 19)
SMALL: dict[str, Any] = {
    "model": "demo",
    "dtype": "float32",
    "threads": 1,
    "num_blocks": 32,
    "block_size": 4,
    "max_model_len": 48,
}
REQUESTS = {
    "greedy": SamplingParams(max_tokens=6),
    "sampled": SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=6, logprobs=1),
    "prompt": SamplingParams(prompt_logprobs=1, max_tokens=3),
    "beams": SamplingParams(beam_width=3, n=2, max_tokens=6),
    "processed": SamplingParams(logits_processors=[favour_token_9], max_tokens=6),
}
FOREVER = 600
LONG = 60
"""Seconds after which a test gives up."""


def make_request(name: str, sampling: SamplingParams) -> Request:
    return Request(id=name, prompt=PROMPT, sampling=sampling)


def finish(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()


def serve(engine: Engine, name: str, **sampling: Any) -> SequenceGroup:
    group = engine.add(make_request(name, SamplingParams(**{"max_tokens": 6, **sampling})))
    finish(engine)
    return group


def error_of(group: SequenceGroup) -> str:
    assert group.sequences[0].finish_reason is FinishReason.ERROR
    return group.sequences[0].error or ""


def build(registry: Registry, **settings: Any) -> Engine:
    return build_engine(settings_class(registry)(**{**SMALL, **settings}), registry)


@contextmanager
def engine_on(inner: Any, ranks: int = 1, **options: Any) -> Iterator[Engine]:
    """An engine on workers, whose executor may be at fault."""
    executor = {"name": "workers", "ranks": ranks, "inner": inner, **options}
    engine = build(registry_with(SLOW, FAULTY), executor=executor, async_scheduling=False)
    try:
        yield engine
    finally:
        engine.close()


def slow(**slow: Any) -> dict[str, Any]:
    return {"name": "slow", **slow}


def faulty(**faults: Any) -> dict[str, Any]:
    return {"name": "faulty_rank", **faults}


def pids_of(engine: Engine) -> list[int]:
    executor = engine.executor
    assert isinstance(executor, WorkersExecutor)
    return [worker.pid or 0 for worker in executor._workers]


def watched_closely(engine: Engine) -> None:
    """Have the ranks that have started miss heartbeats soon; others start beside a busy machine."""
    executor = engine.executor
    assert isinstance(executor, WorkersExecutor)
    for worker in executor._workers:
        worker.heartbeat.timeout = 2.0


def children() -> list[int]:
    return [child.pid for child in psutil.Process().children()]


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """No process, no file, and nothing in shared memory."""
    before, num_files = set(children()), psutil.Process().num_fds()
    memory = named_memory()
    yield
    assert set(children()) <= before
    assert psutil.Process().num_fds() <= num_files
    check_no_memory_left(memory)


@contextmanager
def soon(number: int, pid: Callable[[], int | None]) -> Iterator[None]:
    """Send a signal to a process a moment from now, once it is where it is awaited to be."""

    def send() -> None:
        end = monotonic() + LONG
        while (found := pid()) is None and monotonic() < end:
            sleep(0.01)
        sleep(0.2)
        assert found is not None
        os.kill(found, number)

    thread = Thread(target=send)
    thread.start()
    yield
    thread.join()


# ---------------------------------------------------------------------- the same answers


def test_says_the_same_as_in_this_process() -> None:
    found = []
    for executor in ("local", "process"):
        engine = build(registry_with(), executor=executor)
        groups = [engine.add(make_request(name, asked)) for name, asked in REQUESTS.items()]
        finish(engine)
        engine.close()
        found.append(
            [
                (group.prompt_logprobs, [(s.output, s.logprobs, s.error) for s in group.sequences])
                for group in groups
            ]
        )
    assert found[0] == found[1]


@pytest.mark.long
def test_one_rank_or_several_say_the_same() -> None:
    prompts, found = ["2 + 2 =", "What is a block table?"], []
    sampling = SamplingParams(temperature=0.8, top_k=20, seed=1, max_tokens=12, logprobs=1)
    for executor in ("workers", "tensor_parallel"):
        with LLM(executor=executor, communicator="gloo", **SMALL) as llm:
            assert llm.engine.executor.runs_in_background
            assert len(pids_of(llm.engine)) == len(found) + 1
            outputs = llm.generate(prompts, sampling) + llm.generate(prompts)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


def test_steps_are_launched_on_ranks_too() -> None:
    """As on a GPU: they sample there, and the first one's tokens count."""
    found = []
    for executor in ("local", {"name": "workers", "ranks": 2, "inner": "emulated"}):
        with LLM(executor=executor, registry=registry_with(EMULATED_LOCAL), **SMALL) as llm:
            asked = [
                SamplingParams(max_tokens=10),
                SamplingParams(max_tokens=10, temperature=1.0, seed=3),
                SamplingParams(max_tokens=10, temperature=1.0, seed=3, logprobs=1),
            ]
            outputs = llm.generate(["2 + 2 =", "Hello", "What is a block"], asked)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]


def test_an_llm_has_the_tokenizer_and_the_size_of_the_model() -> None:
    given = {key: value for key, value in SMALL.items() if key != "num_blocks"}
    executor = {"name": "workers", "ranks": 2}
    with LLM(executor=executor, kv_cache_memory="1MiB", **given) as llm:
        assert llm.engine.capacity.num_blocks > 0, "what fits on every rank"
        assert llm.generate(["2 + 2 ="])[0].outputs[0].text == " 4"
        assert llm.get_tokenizer().encode("Hello")
        size = llm.engine.executor.model_size()  # type: ignore[attr-defined]
        assert size is not None
        assert size.layer_weights > 0


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("workers", r"executor.inner: a part cannot be 'workers'; name one of .*local"),
        ("locl", r"executor.inner: no executor is called 'locl'; did you mean 'local'"),
        ({"name": "memory", "size": 3}, r"executor.inner.size: 'memory' has no such option"),
        ("simulated", r"executor.inner: 'simulated' has a clock of its own"),
    ],
)
def test_what_cannot_run_in_a_process_is_refused(inner: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(registry_with(), executor={"name": "workers", "inner": inner})


def test_errors_of_the_start_are_those_of_the_inner_executor(tmp_path: Path) -> None:
    registry, executor = registry_with(), {"name": "workers", "inner": "memory"}
    with pytest.raises(SettingsError, match="reserves blocks"):  # when the process is there
        build(registry, executor=executor, preemption="swap", block_allocator="contiguous")
    with pytest.raises(CheckpointError):
        build(registry, executor="process", model=str(tmp_path))


@pytest.mark.long
def test_a_model_that_as_many_ranks_cannot_share_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="ranks"):
        build(registry_with(), executor={"name": "workers", "ranks": 3})


def test_processors_that_another_process_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(output: Sequence[int], logits: Any) -> Any:
        return logits

    mine.__module__, mine.__qualname__ = "__main__", "mine"
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    engine = build(registry_with(), executor="memory")
    engine.capacity = replace(engine.capacity, remote=True)
    for processor, name in ((mine, "mine"), (lambda _, logits: logits, "<lambda>")):
        asked = SamplingParams(logits_processors=[favour_token_9, processor])
        with pytest.raises(RequestError, match=r"request 'A'.*module( level)?") as refused:
            engine.add(make_request("A", asked))
        assert name in str(refused.value)
    assert not engine.has_unfinished


def test_parts_survive_a_round_trip() -> None:
    registry = registry_with(SLOW)
    settings = settings_class(registry)(**SMALL, executor={"name": "workers", "inner": "slow"})
    parts = ExecutorContext(settings=settings, registry=registry, needs_host_blocks=True)
    copy = pickle.loads(pickle.dumps(parts))
    assert copy.registry.get("executor", "slow") == SLOW
    assert copy == pickle.loads(pickle.dumps(copy)) == parts
    blocked = Registry.discover(block=["bench"])
    found = pickle.loads(pickle.dumps(blocked))
    assert found == blocked
    assert found.notes == blocked.notes != ()


# ---------------------------------------------------------------------- workers that are lost

LOST = {
    "killed": (signal.SIGKILL, 1, r"rank 1 of 2 \(pid \d+\) was killed by SIGKILL {}"),
    "stopped": (
        signal.SIGSTOP,
        0,
        r"rank 0 of 2 \(pid \d+\) has answered no heartbeat for 2 s {}.*'stopped', and was killed",
    ),
}


class TestARank:
    """Ends or stops, which ends them all; the error names it."""

    def test_at_the_start(self, tmp_path: Path) -> None:
        number, rank, said = LOST["killed"]
        before = set(children())

        def begun() -> int | None:
            """The pid of the rank, once it waits where it was told to."""
            started = sorted(set(children()) - before)
            is_there = len(started) == 2 and (tmp_path / str(started[rank])).exists()
            return started[rank] if is_there else None

        with (
            soon(number, begun),
            pytest.raises(ExecutorLost, match=said.format("while it started")),
            engine_on(faulty(start=LONG, folder=str(tmp_path)), 2, heartbeat_timeout=3.0),
        ):
            raise AssertionError("they have started")

    @pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
    def test_in_a_step(self, how: str, tmp_path: Path) -> None:
        """The step fails on all of them, in time; the next one starts all again, as large."""
        number, rank, said = LOST[how]
        faults = faulty(hangs=rank, folder=str(tmp_path))
        with engine_on(faults, 2) as engine:
            watched_closely(engine)
            first, capacity = pids_of(engine), engine.capacity
            (tmp_path / "hang").touch()
            with soon(
                number, lambda: first[rank] if (tmp_path / str(first[rank])).exists() else None
            ):
                error = error_of(serve(engine, "A"))
            assert re.search(said.format("in a step"), error), error
            assert error.startswith("executor 'workers' raised ExecutorLost")
            assert ("heartbeat_timeout" if how == "stopped" else "num_blocks") in error
            assert not [pid for pid in first if psutil.pid_exists(pid)]
            assert engine.kv_cache.num_free == 32
            (tmp_path / "hang").unlink()
            assert serve(engine, "B").sequences[0].error is None
            assert not {*pids_of(engine)} & {*first}
            assert engine.executor.start() == capacity

    def test_between_steps_and_at_the_close(self) -> None:
        number, rank, _ = LOST["stopped"]
        with engine_on(faulty(), 2) as engine:
            watched_closely(engine)
            os.kill(pids_of(engine)[rank], number)
            assert f"rank {rank} of 2" in error_of(serve(engine, "A"))
        with engine_on(faulty(), 2) as engine:
            watched_closely(engine)
            os.kill(pids_of(engine)[rank], number)
            engine.close()


@pytest.mark.parametrize(
    ("inner", "killed", "call", "moment"),
    [
        pytest.param("shm", 0, 4, "before", marks=pytest.mark.long),
        ("shm", 1, 7, "inside"),
        pytest.param("gloo", 1, 12, "after", marks=pytest.mark.long),
        pytest.param("gloo", 0, 7, "inside", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_is_killed_at_a_collective_call_is_named(
    inner: str, killed: int, call: int, moment: str, tmp_path: Path
) -> None:
    """By the request, or by the next one, if the answer was right: it was the last to be done."""
    alone = build(registry_with())
    expected = serve(alone, "A").sequences[0].output
    alone.close()
    marker = tmp_path / "killed"
    how = {"inner": inner, "killed": killed, "call": call, "moment": moment, "marker": str(marker)}
    ranks = {"name": "tensor_parallel", "ranks": 2}
    communicator = {"name": "dying", **how}
    engine = build(registry_with(DYING), executor=ranks, communicator=communicator)
    try:
        (first,) = serve(engine, "A").sequences
        assert marker.exists()
        if first.output == expected:
            (first,) = serve(engine, "B").sequences
        assert first.output == expected or f"rank {killed} of 2" in (first.error or "")
        assert serve(engine, "C").sequences[0].output == expected
    finally:
        engine.close()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that wait for a rank that has raised get little time to answer."""
    monkeypatch.setattr(workers, "_GRACE", 0.5)


@pytest.mark.usefixtures("_impatient")
def test_a_rank_alone_that_raises_ends_the_ranks() -> None:
    with (
        pytest.raises(SettingsError, match="rank 1 has no memory"),
        engine_on(faulty(refuses=1), 2),
    ):
        raise AssertionError("they have started")
    with engine_on(faulty(raises=[1]), 2) as engine:
        error = error_of(serve(engine, "A", max_tokens=1))
        assert "rank 1 of 2" in error
        assert "a deliberate failure" in error


def test_what_all_ranks_raise_ends_the_requests_of_the_step_alone() -> None:
    with engine_on(faulty(raises=[0, 1]), 2) as engine:
        first = pids_of(engine)
        assert without_place(error_of(serve(engine, "A"))).endswith(
            "executor 'faulty_rank' raised LookupError: a deliberate failure"
        )
        assert pids_of(engine) == first


@pytest.mark.usefixtures("_impatient")
def test_a_rank_that_comes_too_late_for_the_others_ends_the_start(tmp_path: Path) -> None:
    """By the deadline of the communicator, although it answers heartbeats."""
    late = faulty(start=4.0, late=1, folder=str(tmp_path))
    with (
        pytest.raises(ExecutorLost, match="did not come to the group within 1 s"),
        engine_on(late, 2, communicator_timeout=1.0),
    ):
        raise AssertionError("they have started")


def test_with_a_step_ahead() -> None:
    with engine_on(slow(step=0.3)) as engine:
        assert engine.capacity.remote
        engine._num_ahead = 1
        group = engine.add(make_request("A", SamplingParams(max_tokens=6)))
        engine.step()
        assert len(engine._in_flight) == 1
        os.kill(pids_of(engine)[0], signal.SIGKILL)
        finish(engine)
        assert "SIGKILL" in error_of(group)
        assert serve(engine, "B").sequences[0].error is None


def test_is_told_until_it_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    with engine_on("slow") as engine:
        os.kill(pids_of(engine)[0], signal.SIGKILL)
        assert "SIGKILL" in error_of(serve(engine, "A"))
        with monkeypatch.context() as broken:
            broken.setattr(workers, "PythonChild", refuse)
            for name in "BC":
                assert "no more processes" in error_of(serve(engine, name))
        assert serve(engine, "D").sequences[0].error is None


def test_one_that_does_not_read_hangs() -> None:
    """The step that is sent is larger than what the sockets hold."""
    with engine_on("slow", heartbeat_timeout=2.0) as engine:
        os.kill(pids_of(engine)[0], signal.SIGSTOP)
        bias = SamplingParams(allowed_token_ids=range(10**6), max_tokens=2)
        group = engine.add(make_request("A", bias))
        finish(engine)
        assert "has answered no heartbeat for 2 s" in error_of(group)
        assert serve(engine, "B").sequences[0].error is None


def test_a_step_may_take_long_but_not_too_long() -> None:
    with engine_on(slow(step=3.0), heartbeat_timeout=1.5) as engine:
        assert serve(engine, "A", max_tokens=1).sequences[0].error is None
    with engine_on(slow(step=60), step_timeout=1.5) as engine:
        error = error_of(serve(engine, "A"))
    assert "has not finished after 1.5 s in a step" in error
    assert "raise executor.step_timeout" in error


# ---------------------------------------------------------------------- this process


@contextmanager
def interrupted(*, after: float) -> Iterator[None]:
    """Press Ctrl-C after so many seconds, also where this process was told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_call_and_not_the_process() -> None:
    with engine_on(slow(step=0.5)) as engine:
        first = pids_of(engine)
        with interrupted(after=0.2):
            serve(engine, "A")
        assert serve(engine, "B").sequences[0].error is None
        assert pids_of(engine) == first


def test_ctrl_c_in_the_middle_of_a_message_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with engine_on("slow") as engine:
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "fill", interrupted)
            with pytest.raises(KeyboardInterrupt):
                serve(engine, "A")
        assert "Ctrl-C had cut off a message" in error_of(serve(engine, "B"))
        assert serve(engine, "C").sequences[0].error is None


def test_what_is_not_awaited_does_not_delay_the_close() -> None:
    with engine_on(slow(step=FOREVER)) as engine:
        with interrupted(after=0.3):
            serve(engine, "A")
        engine.close()


def test_a_forked_process_is_told_to_make_another() -> None:
    with engine_on("slow") as engine:
        expected = serve(engine, "A").sequences[0].output
        child = os.fork()
        if child == 0:
            status = 1
            with suppress(BaseException):
                with pytest.raises(EngineError, match="was forked from that; make another"):
                    engine.executor.submit(None)  # type: ignore[arg-type]
                engine.close()
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert serve(engine, "B").sequences[0].output == expected


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
        with engine_on("memory", 2, pin_cores=True) as engine:
            first, second = ({*psutil.Process(pid).cpu_affinity()} for pid in pids_of(engine))
        assert first and second and not first & second
