"""An executor in a process of its own: the same answers, and what happens when the process ends."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
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
from integration.slow_executor import SLOW, favour_token_9
from paged_backends.executors import workers
from paged_backends.executors.workers import WorkersExecutor
from paged_core import LLM
from paged_core.engine.contexts import AttentionContext, ExecutorContext, RunnerContext
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import (
    CheckpointError,
    EngineError,
    ExecutorLost,
    RequestError,
    SettingsError,
)
from paged_core.plugins.registry import Registry
from paged_core.processes.channel import Channel
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import settings_class
from paged_testing import registry_with
from unit.engines import without_place

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


def make_request(name: str, sampling: SamplingParams, prompt: Sequence[int] = PROMPT) -> Request:
    return Request(id=name, prompt=tuple(prompt), sampling=sampling)


def finish(engine: Engine) -> None:
    while engine.has_unfinished:
        engine.step()


def answers(engine: Engine) -> list[Any]:
    groups = [engine.add(make_request(name, asked)) for name, asked in REQUESTS.items()]
    finish(engine)
    engine.close()
    return [
        (group.prompt_logprobs, [(s.output, s.logprobs, s.error) for s in group.sequences])
        for group in groups
    ]


def build(registry: Registry, **settings: Any) -> Engine:
    return build_engine(settings_class(registry)(**{**SMALL, **settings}), registry)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """No process and no file stays open."""
    before, num_files = {child.pid for child in children()}, psutil.Process().num_fds()
    yield
    assert not [child for child in children() if child.pid not in before]
    assert psutil.Process().num_fds() <= num_files


@contextmanager
def slow_engine(timeout: float = 30.0, **slow: Any) -> Iterator[Engine]:
    """An engine on ``slow`` in a process."""
    options = {"name": "process", "inner": {"name": "slow", **slow}, "heartbeat_timeout": timeout}
    engine = build(registry_with(SLOW), executor=options, async_scheduling=False)
    try:
        yield engine
    finally:
        engine.close()


def pid_of(engine: Engine) -> int:
    executor = engine.executor
    assert isinstance(executor, WorkersExecutor)
    assert executor._workers
    return executor._workers[0].pid


def new_child() -> Callable[[], int | None]:
    before = {child.pid for child in children()}
    return lambda: next((child.pid for child in children() if child.pid not in before), None)


@contextmanager
def soon(number: int, pid: Callable[[], int | None]) -> Iterator[None]:
    """Send a signal to a process a moment from now, once it is there."""

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


def serve(engine: Engine, name: str, **sampling: Any) -> SequenceGroup:
    group = engine.add(make_request(name, SamplingParams(**{"max_tokens": 6, **sampling})))
    finish(engine)
    return group


def error_of(group: SequenceGroup) -> str:
    assert group.sequences[0].finish_reason is FinishReason.ERROR
    return group.sequences[0].error or ""


# ---------------------------------------------------------------------- the same answers


@pytest.mark.parametrize("inner", ["memory", "emulated", "local"])
def test_says_the_same_as_in_this_process(inner: Any) -> None:
    registry = registry_with(EMULATED_LOCAL)
    here = answers(build(registry, executor=inner))
    assert answers(build(registry, executor={"name": "process", "inner": inner})) == here


TIGHT: dict[str, dict[str, Any]] = {
    "swapped": {"preemption": "swap", "num_host_blocks": 40},
    "recomputed": {"scheduler": {"name": "token_budget", "max_num_batched_tokens": 9}},
    "in step": {"async_scheduling": False, "scheduler": "prefill_or_decode"},
}


@pytest.mark.parametrize("tight", TIGHT)
def test_text_is_that_of_local_when_blocks_are_short(tight: str) -> None:
    prompts = ["2 + 2 =", "2 + 3 =", "2 + 2 = 4. 2 + 3 =", "What is a block table?", "Hello"]
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    settings = {**SMALL, "num_blocks": 22, **TIGHT[tight]}
    found, waits = [], []
    for executor in ("local", "process"):
        with LLM(executor=executor, **settings) as llm:
            outputs = llm.generate(prompts, sampling) + llm.generate(prompts, sampling)
            found.append([output.outputs[0].text for output in outputs])
            waits.append(llm.get_metrics())
            assert llm.engine.kv_cache.num_free == 22
    assert found[0] == found[1]
    assert waits[1].num_preemptions
    assert waits[1].num_cached_tokens


def test_the_next_step_is_sent_while_one_runs() -> None:
    with slow_engine(step=0.2) as engine:
        assert engine.capacity.remote
        assert engine.executor.runs_in_background
        engine._num_ahead = 1
        engine.add(make_request("A", SamplingParams(max_tokens=4)))
        engine.step()
        assert len(engine._in_flight) == 1
        finish(engine)


def test_an_llm_has_the_tokenizer_and_the_size_of_the_model() -> None:
    with LLM(executor="process", **SMALL) as llm:
        assert llm.get_tokenizer().encode("Hello")
        executor = llm.engine.executor
        assert isinstance(executor, WorkersExecutor)
        size = executor.model_size()
        assert size is not None
        assert size.layer_weights > 0


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("process", r"executor.inner: a part cannot be 'process'; name one of .*local"),
        ("locl", r"executor.inner: no executor is called 'locl'; did you mean 'local'"),
        ({"name": "memory", "size": 3}, r"executor.inner.size: 'memory' has no such option"),
        ("simulated", r"executor.inner: 'simulated' has a clock of its own"),
        ({"name": "memory", "vocab_size": 0}, r"executor.inner.vocab_size: .* greater than 0"),
    ],
)
def test_what_cannot_run_in_a_process_is_refused(inner: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(registry_with(), executor={"name": "process", "inner": inner})


def test_errors_of_the_start_are_those_of_the_inner_executor(tmp_path: Path) -> None:
    registry, executor = registry_with(), {"name": "process", "inner": "memory"}
    with pytest.raises(SettingsError, match="without a model there are"):
        build(registry, executor=executor, num_blocks=10**8)
    with pytest.raises(CheckpointError):
        build(registry, executor="process", model=str(tmp_path))


def test_its_process_ends_if_the_engine_cannot_be_built() -> None:
    swapping: dict[str, Any] = {"preemption": "swap", "block_allocator": "contiguous"}
    executor = {"name": "process", "inner": "memory"}
    with pytest.raises(SettingsError, match="reserves blocks"):
        build(registry_with(), executor=executor, **swapping)


def test_what_a_step_raises_names_the_inner_executor_and_others_go_on() -> None:
    with slow_engine(fails=True) as engine:
        group = serve(engine, "A")
        assert without_place(error_of(group)).endswith(
            "executor 'slow' raised LookupError: a deliberate failure"
        )
        pid = pid_of(engine)
        serve(engine, "B")
        assert pid_of(engine) == pid


def remote_engine() -> Engine:
    """An engine that takes its executor to be in another process."""
    engine = build(registry_with(), executor="memory")
    engine.capacity = replace(engine.capacity, remote=True)
    return engine


class Unpicklable:
    """A processor that holds what cannot be pickled."""

    def __init__(self) -> None:
        self.grammar = (token for token in range(3))

    def __call__(self, output: Sequence[int], logits: Any) -> Any:
        return logits


def unpicklable() -> list[Any]:
    def local(output: Sequence[int], logits: Any) -> Any:
        return logits

    return [lambda _, logits: logits, local, Unpicklable()]


class TestProcessors:
    @pytest.mark.parametrize("number", range(3))
    def test_that_cannot_be_pickled_are_refused(self, number: int) -> None:
        processor = unpicklable()[number]
        name = ["<lambda>", "local", "Unpicklable"][number]
        engine = remote_engine()
        asked = SamplingParams(logits_processors=[favour_token_9, processor])
        with pytest.raises(RequestError, match="cannot be pickled") as refused:
            engine.add(make_request("A", asked))
        assert "request 'A'" in str(refused.value)
        assert f"{name}, which" in str(refused.value)
        assert "module level" in str(refused.value)
        assert not engine.has_unfinished

    def test_of_the_program_itself_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mine(output: Sequence[int], logits: Any) -> Any:
            return logits

        mine.__module__, mine.__qualname__ = "__main__", "mine"
        monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
        with pytest.raises(RequestError, match="define it in a module"):
            remote_engine().add(make_request("A", SamplingParams(logits_processors=[mine])))

    def test_are_served_where_steps_stay_in_this_process(self) -> None:
        engine = build(registry_with(), executor="memory")
        engine.add(make_request("A", SamplingParams(logits_processors=unpicklable())))
        finish(engine)


class TestParts:
    def parts(self, **settings: Any) -> ExecutorContext:
        registry = registry_with(SLOW)
        made = settings_class(registry)(**{**SMALL, **settings})
        return ExecutorContext(settings=made, registry=registry, needs_host_blocks=True)

    def test_survive_a_round_trip(self) -> None:
        of_executor = self.parts(executor={"name": "process", "inner": "slow"})
        copy = pickle.loads(pickle.dumps(of_executor))
        assert copy.registry.get("executor", "slow") == SLOW
        settings = self.parts().settings
        others = RunnerContext(settings=settings), AttentionContext(settings=settings)
        for parts in (of_executor, copy, *others):
            assert pickle.loads(pickle.dumps(parts)) == parts

    @pytest.mark.parametrize("chosen", ["auto", "native", "transformers"])
    def test_build_the_same_after_a_round_trip(self, chosen: str) -> None:
        parts = self.parts(runner=chosen, attention="torch")
        copy = pickle.loads(pickle.dumps(parts))
        runner = copy.make_runner()
        assert type(runner) is type(parts.make_runner())
        attention = copy.make_attention(runner.layers)
        assert type(attention) is type(parts.make_attention(runner.layers))

    def test_know_a_blocked_plugin(self) -> None:
        registry = Registry.discover(block=["bench"])
        copy = pickle.loads(pickle.dumps(registry))
        assert copy == registry
        assert copy.notes == registry.notes != ()


# ---------------------------------------------------------------------- death and hanging


class TestDeath:
    def test_at_the_start(self) -> None:
        with (
            soon(signal.SIGKILL, new_child()),
            pytest.raises(ExecutorLost, match=r"killed by SIGKILL while it started; .*memory"),
            slow_engine(start=FOREVER),
        ):
            raise AssertionError("it has started")

    def test_in_a_step(self) -> None:
        with slow_engine(step=FOREVER) as engine:
            pid, started = pid_of(engine), monotonic()
            with soon(signal.SIGKILL, lambda: pid):
                group = serve(engine, "A")
            assert monotonic() - started < 10
            error = error_of(group)
            assert f"(pid {pid}) was killed by SIGKILL in a step" in error
            assert error.startswith("executor 'process' raised ExecutorLost")
            assert engine.kv_cache.num_free == 32

    def test_between_steps(self) -> None:
        with slow_engine() as engine:
            assert serve(engine, "A").sequences[0].error is None
            os.kill(pid_of(engine), signal.SIGSEGV)
            assert "killed by SIGSEGV" in error_of(serve(engine, "B"))

    def test_at_the_close(self) -> None:
        with slow_engine(close=FOREVER) as engine:
            started, pid = monotonic(), pid_of(engine)
            with soon(signal.SIGKILL, lambda: pid):
                engine.close()
            assert monotonic() - started < 10

    def test_is_made_good_by_the_next_step(self) -> None:
        """All requests end, also those that wait; what was cached and pinned is gone."""
        with slow_engine() as engine, slow_engine() as other:
            expected = serve(other, "A").sequences[0].output
            pin = engine.pin(range(8))
            finish(engine)
            assert serve(engine, "A").sequences[0].output == expected
            first = pid_of(engine)
            waiting = engine.add(make_request("B", SamplingParams(max_tokens=6)))
            os.kill(first, signal.SIGKILL)
            finish(engine)
            assert "SIGKILL" in error_of(waiting)
            assert "SIGKILL" in (pin.end_reason or "")
            assert engine.kv_cache.num_free == 32
            again = serve(engine, "A")
            assert again.num_cached == 0
            assert again.sequences[0].output == expected
            assert pid_of(engine) != first

    def test_with_a_step_ahead(self) -> None:
        with slow_engine(step=0.3) as engine:
            engine._num_ahead = 1
            group = engine.add(make_request("A", SamplingParams(max_tokens=6)))
            engine.step()
            os.kill(pid_of(engine), signal.SIGKILL)
            finish(engine)
            assert "SIGKILL" in error_of(group)
            assert serve(engine, "B").sequences[0].error is None

    def test_is_told_until_it_can_be_started_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError("no more processes")

        with slow_engine() as engine:
            os.kill(pid_of(engine), signal.SIGKILL)
            assert "SIGKILL" in error_of(serve(engine, "A"))
            with monkeypatch.context() as broken:
                broken.setattr(workers, "PythonChild", refuse)
                for name in "BC":
                    assert "no more processes" in error_of(serve(engine, name))
            assert serve(engine, "D").sequences[0].error is None

    def test_reaches_those_who_listen_to_a_driver(self) -> None:
        with slow_engine(step=FOREVER) as engine:
            driver, ended = EngineDriver(engine), list[str | None]()
            pid = pid_of(engine)

            def hear(group: SequenceGroup) -> None:
                if not group.live:
                    ended.append(group.sequences[0].error)
                    driver.close()

            for name in "AB":
                driver.submit(make_request(name, SamplingParams()), listener=hear)
            with soon(signal.SIGKILL, lambda: pid):
                driver.run()
            assert len(ended) == 2
            assert all("SIGKILL" in (error or "") for error in ended)


class TestHanging:
    def test_at_the_start(self) -> None:
        message = r"no heartbeat for 2 s while it started, in the state 'stopped', and was killed"
        with (
            soon(signal.SIGSTOP, new_child()),
            pytest.raises(ExecutorLost, match=message),
            slow_engine(2.0, start=FOREVER),
        ):
            raise AssertionError("it has started")

    def test_in_a_step(self) -> None:
        with slow_engine(2.0, step=FOREVER) as engine:
            pid, started = pid_of(engine), monotonic()
            with soon(signal.SIGSTOP, lambda: pid):
                error = error_of(serve(engine, "A"))
            assert 2 < monotonic() - started < 20
            assert f"(pid {pid}) has answered no heartbeat for 2 s in a step" in error
            assert "'stopped', and was killed" in error
            assert "raise executor.heartbeat_timeout" in error
            assert engine.kv_cache.num_free == 32

    def test_when_a_step_is_sent(self) -> None:
        """One that is larger than what the sockets hold."""
        with slow_engine(1.0) as engine:
            os.kill(pid_of(engine), signal.SIGSTOP)
            bias = SamplingParams(allowed_token_ids=range(10**6), max_tokens=2)
            group = engine.add(make_request("A", bias))
            finish(engine)
            assert "has answered no heartbeat for 1 s" in error_of(group)
            assert serve(engine, "B").sequences[0].error is None

    def test_at_the_close(self) -> None:
        with slow_engine(1.0) as engine:
            os.kill(pid_of(engine), signal.SIGSTOP)
            started = monotonic()
            engine.close()
            assert monotonic() - started < 10

    def test_is_not_a_step_that_takes_long(self) -> None:
        with slow_engine(1.0, step=3.0) as engine:
            assert serve(engine, "A", max_tokens=1).sequences[0].error is None

    def test_is_a_step_that_takes_too_long(self) -> None:
        options = {"name": "process", "inner": {"name": "slow", "step": 60}, "step_timeout": 1.5}
        engine = build(registry_with(SLOW), executor=options)
        error = error_of(serve(engine, "A"))
        engine.close()
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
    with slow_engine(step=0.5) as engine:
        pid = pid_of(engine)
        with interrupted(after=0.2):
            serve(engine, "A")
        assert serve(engine, "B").sequences[0].error is None
        assert pid_of(engine) == pid


def test_ctrl_c_in_the_middle_of_a_message_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with slow_engine() as engine:
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "fill", interrupted)
            with pytest.raises(KeyboardInterrupt):
                serve(engine, "A")
        assert "Ctrl-C had cut off a message" in error_of(serve(engine, "B"))
        assert serve(engine, "C").sequences[0].error is None


def test_what_is_not_awaited_does_not_delay_the_close() -> None:
    with slow_engine(step=FOREVER) as engine:
        with interrupted(after=0.3):
            serve(engine, "A")
        started = monotonic()
        engine.close()
        assert monotonic() - started < 10


PROGRAM = """
    import os, sys
    from paged_core import LLM

    llm = LLM(executor={{"name": "process", "inner": "memory"}}, num_blocks=8, max_model_len=32)
    print(llm.engine.executor._workers[0].pid, flush=True)
    {}
"""
ENDINGS = {
    "killed": "os.kill(os.getpid(), 9)",
    "killed while the process is stopped": (
        "os.kill(llm.engine.executor._workers[0].pid, 19); os.kill(os.getpid(), 9)"
    ),
    "exit": "sys.exit(3)",
    "end": "",
    "collected": "del llm; import gc, time; gc.collect(); time.sleep(600)",
    "exit without cleaning up": "os._exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_with_the_one_that_started_it(ending: str) -> None:
    """Which is a program without a guard on ``__main__``."""
    program = textwrap.dedent(PROGRAM).format(ENDINGS[ending])
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            pid = int(parent.stdout.readline())
            with suppress(psutil.NoSuchProcess):  # it has ended already
                psutil.Process(pid).wait(LONG)
            assert not psutil.pid_exists(pid)
        finally:
            parent.kill()


def test_a_forked_process_is_told_to_make_another() -> None:
    with slow_engine() as engine:
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
