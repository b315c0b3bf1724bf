"""An engine in a process of its own: what it answers, and what happens when it is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from threading import Thread
from typing import Any

import psutil
import pytest

from paged_core import LLM, AsyncLLM, RequestOutput, SamplingParams
from paged_core.client.engine_client import ClientState
from paged_core.errors import CheckpointError, EngineError, EngineLost, RequestError, SettingsError
from paged_core.plugins.registry import Registry
from paged_core.processes.child import PythonChild
from paged_core.settings.schema import settings_class
from paged_plugins.engine_process import backoff, engine_process
from paged_plugins.engine_process import client as process_client
from paged_plugins.engine_process.client import ProcessClient
from paged_plugins.engine_process.engine_process import EngineProcess
from paged_plugins.engine_process.kept_pins import KeptPins
from paged_plugins.http_client import fastest_loop
from server.outputs import comparable, last
from server.served import run

pytestmark = pytest.mark.heavy


SETTINGS = {"num_blocks": 256, "max_model_len": 256, "threads": 1}
MEMORY = {"executor": "memory", "num_blocks": 1024, "max_model_len": 8192}
"""An engine without a model, whose process starts in a second."""
FOREVER = SamplingParams(max_tokens=8000, ignore_eos=True)
Test = Callable[[AsyncLLM, ProcessClient], Awaitable[None]]
Losing = Callable[[Test], None]
PROMPTS = ["What is a block table?", "Hello", "3 + 4 ="]
IDS = [5, 6, 7]
CASES = {
    "greedy": SamplingParams(max_tokens=16),
    "stop string": SamplingParams(max_tokens=40, stop=["block", "."]),
    "several": SamplingParams(max_tokens=12, n=3, temperature=0.9, seed=5),
    "best of": SamplingParams(max_tokens=12, n=2, best_of=4, temperature=0.9, seed=5),
    "log-probabilities": SamplingParams(max_tokens=6, logprobs=3, prompt_logprobs=2),
    "bias": SamplingParams(max_tokens=4, logit_bias={65: 100.0}),
}


class Loop:
    """An event loop in a thread, in which a client lives for several tests: that of a server."""

    def __init__(self) -> None:
        self.loop = (fastest_loop() or asyncio.new_event_loop)()
        self._thread = Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Any, seconds: float = 120) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def make_client(settings: Mapping[str, Any] = MEMORY, **options: Any) -> ProcessClient:
    registry = Registry.discover()
    return ProcessClient(settings_class(registry)(**settings), registry, **options)


def served(test: Test, **options: Any) -> Any:
    async def main() -> Any:
        client = make_client(**options)
        async with AsyncLLM.from_client(client) as llm:
            return await asyncio.wait_for(test(llm, client), 300)

    return run(main())


@contextmanager
def started(settings: Mapping[str, Any]) -> Iterator[tuple[Loop, AsyncLLM]]:
    loop = Loop()

    async def start() -> AsyncLLM:
        llm = AsyncLLM.from_client(make_client(settings))
        await llm.start()
        return llm

    llm = loop.run(start())
    try:
        yield loop, llm
    finally:
        loop.run(llm.close())
        loop.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Loop, AsyncLLM]]:
    with started(SETTINGS) as both:
        yield both


@pytest.fixture(scope="module")
def without_model() -> Iterator[tuple[Loop, AsyncLLM]]:
    with started(MEMORY) as both:
        yield both


@pytest.fixture
def losing(without_model: tuple[Loop, AsyncLLM], monkeypatch: pytest.MonkeyPatch) -> Losing:
    """The same engine, ready before each test that loses it, and never given up."""
    monkeypatch.setattr(backoff, "_PAUSES", (0.1,) * 30)
    loop, llm = without_model

    async def tried(test: Test) -> None:
        assert isinstance(llm.client, ProcessClient)
        while not llm.client.is_ready:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(test(llm, llm.client), 300)

    return lambda test: loop.run(tried(test), 400)


@pytest.fixture(scope="module")
def expected() -> Iterator[LLM]:
    with LLM(**SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("name", CASES)
def test_it_answers_as_llm_does(shared: tuple[Loop, AsyncLLM], expected: LLM, name: str) -> None:
    loop, llm = shared

    async def ask() -> list[RequestOutput]:
        return await asyncio.gather(*(last(llm.generate(each, CASES[name])) for each in PROMPTS))

    wanted = expected.generate(PROMPTS, CASES[name])
    assert [comparable(each) for each in loop.run(ask())] == [comparable(each) for each in wanted]


def test_what_a_front_end_may_ask(shared: tuple[Loop, AsyncLLM]) -> None:
    loop, llm = shared

    async def ask() -> None:
        pin = await llm.pin_prefix("What is a block table? " * 6)
        assert not await llm.reset_prefix_cache()
        await llm.release(pin)
        assert await llm.reset_prefix_cache()
        found = await llm.get_metrics()
        assert found.num_free_blocks == found.num_blocks == 256
        assert found.num_finished
        with pytest.raises(RequestError, match="no pin 'x'"):
            await llm.release("x")
        with pytest.raises(RequestError, match="no observer 'none'"):
            await llm.client.report("none")
        with pytest.raises(RequestError, match=r"longer|max_model_len"):
            await last(llm.generate([1] * 300))
        with pytest.raises(RequestError, match="shout"):
            await last(llm.generate("Hi", SamplingParams(logits_processors=[shout])))

    loop.run(ask())


def test_a_request_may_be_larger_than_a_socket_holds(shared: tuple[Loop, AsyncLLM]) -> None:
    loop, llm = shared

    async def ask() -> list[RequestOutput]:
        large = (last(llm.generate(IDS, cache_salt=f"{salt}" * (5 << 20))) for salt in range(2))
        return await asyncio.gather(*large, last(llm.generate(IDS)))

    assert len({one.outputs[0].text for one in loop.run(ask())}) == 1


def shout(tokens: Any, logits: Any) -> Any:
    return logits


def test_a_reader_that_leaves_frees_its_blocks(without_model: tuple[Loop, AsyncLLM]) -> None:
    loop, llm = without_model

    async def ask() -> None:
        async with aclosing(llm.generate(IDS, FOREVER)) as outputs:
            await anext(outputs)
        while (found := await llm.get_metrics()).num_unfinished:
            await asyncio.sleep(0.01)
        assert found.num_free_blocks == found.num_blocks

    loop.run(ask())


PIN = list(range(100))


def test_a_killed_engine_is_started_again(losing: Losing) -> None:
    """An answer that was read ends with an error, the others go on; pins are held again."""

    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        pin = await llm.pin_prefix(PIN)
        read = llm.generate(IDS, FOREVER)
        await anext(read)
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # or it would answer, and answers be read
        unread = [asyncio.create_task(last(llm.generate([n]))) for n in range(3)]
        while client.health().num_unfinished < 1 + len(unread):
            await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match=str(pid)):
            await last(read)
        state = client.health()
        assert state.state is ClientState.RESTARTING
        assert state.reason
        with pytest.raises(EngineError, match="no requests are taken"):
            await last(llm.generate(IDS))
        answers = await asyncio.gather(*unread)
        assert all(each.finished and each.outputs[0].finish_reason != "error" for each in answers)
        assert client.health().state is ClientState.READY
        assert client.pid != pid
        assert not psutil.pid_exists(pid)
        other = await llm.pin_prefix(PIN)
        assert other != pin, "names are those of the client, not of the engine"
        await llm.release(other)
        assert not await llm.reset_prefix_cache(), "it is held again"
        await llm.release(pin)
        asking = asyncio.create_task(llm.pin_prefix(PIN))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while not await llm.reset_prefix_cache():
            await asyncio.sleep(0.01)
        found = await llm.get_metrics()
        assert found.num_free_blocks == found.num_blocks == MEMORY["num_blocks"]

    losing(test)


def test_pins_whose_time_has_ended_are_not_kept_for_engines_to_come() -> None:
    class Pinning:
        is_ready = True

        async def hold(self, *_: Any, **__: Any) -> str:
            return "held"

        async def let_go(self, pin: str, /) -> None:
            raise AssertionError(pin)

    async def main() -> None:
        now = [0.0]
        pins = KeptPins(lambda: now[0])
        for number in range(10):
            await pins.pin([Pinning()], [number], 1.0, None)
            now[0] += 2.0
        assert len(pins._pins) == 1, "the last one: it had time left when it was looked"

    run(main())


def test_an_engine_that_was_not_asked_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A front end may take longer to start than an engine may be silent, or be stopped itself."""
    make = process_client.make_front_end

    def make_slowly(*arguments: Any) -> Any:
        time.sleep(2.5)
        return make(*arguments)

    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        pid = client.pid
        await asyncio.sleep(0.5)
        time.sleep(2.5)  # the loop, which asks, stands still
        await asyncio.sleep(0.5)
        assert client.pid == pid, "it was started again"

    monkeypatch.setattr(process_client, "make_front_end", make_slowly)
    served(test, hang_seconds=2)


def test_whatever_a_start_raises_another_is_tried_and_deadlines_pass_meanwhile(
    losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no descriptors")

    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(process_client, "PythonChild", refuse)
            os.kill(client.pid or 0, signal.SIGSTOP)  # or it would answer, and answers be read
            late = llm.generate(IDS, FOREVER, deadline=client.clock() + 0.6)
            asked = [asyncio.create_task(last(each)) for each in (late, llm.generate(IDS))]
            while client.health().num_unfinished < 2:
                await asyncio.sleep(0)
            os.kill(client.pid or 0, signal.SIGKILL)
            with pytest.raises(EngineLost, match="its deadline passed"):
                await asked[0]
            assert "no descriptors" in (client.health().reason or "")
        assert (await asked[1]).finished
        assert client.is_ready

    losing(test)


def test_whatever_looking_at_an_engine_raises_it_is_started_again(
    losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: EngineProcess) -> Any:
        raise OSError("no descriptors")

    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        pid = client.pid
        with monkeypatch.context() as broken:
            broken.setattr(EngineProcess, "pulse", refuse)
            while client.pid == pid:
                await asyncio.sleep(0.01)
        assert "cannot be watched: OSError: no descriptors" in (client.health().reason or "")
        while not client.is_ready:
            await asyncio.sleep(0.01)
        assert (await last(llm.generate(IDS))).finished

    losing(test)


def test_an_engine_that_nothing_watches_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise MemoryError("nothing is left")

    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        monkeypatch.setattr(client._backoff, "pause", refuse)
        os.kill(client.pid or 0, signal.SIGSTOP)  # or it might answer before it is killed
        asked = asyncio.create_task(last(llm.generate(IDS, FOREVER)))
        await asyncio.sleep(0)
        os.kill(client.pid or 0, signal.SIGKILL)
        with pytest.raises(EngineLost, match="nothing watches it: MemoryError: nothing is left"):
            await asked
        assert client.health().state is ClientState.FAILED

    served(test)


def test_draining_outranks_a_restart() -> None:
    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        os.kill(client.pid or 0, signal.SIGSTOP)  # or it might answer before it is killed
        asked = asyncio.create_task(last(llm.generate(IDS, FOREVER)))
        await asyncio.sleep(0)
        os.kill(client.pid or 0, signal.SIGKILL)
        while client.health().state is ClientState.READY:
            await asyncio.sleep(0)
        while client.pid is not None:
            await asyncio.sleep(0.01)
        draining = asyncio.create_task(client.drain())
        while not draining.done():
            await asyncio.sleep(0.01)
            assert client.health().state is ClientState.DRAINING
            with pytest.raises(EngineError, match="no requests are taken"):
                await last(llm.generate(IDS))
        assert (await asked).finished, "it is served again"
        assert client.health().state is ClientState.DRAINING

    served(test)


def test_one_that_is_stopped_while_it_starts_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "_START_SILENCE", 1.0)

    async def main() -> None:
        client = make_client()
        starting = asyncio.create_task(client.start())
        while client.pid is None:
            await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGSTOP)
        with pytest.raises(EngineError, match=r"stopped.*no life.*while it started"):
            await starting
        await client.close()

    run(main())


@pytest.mark.parametrize(
    ("bound", "said"), [("_PLACING", "was not placed"), ("_STARTING", "took no requests after")]
)
def test_every_wait_for_a_start_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, bound: str, said: str
) -> None:
    monkeypatch.setattr(engine_process, bound, 0.0)
    if bound == "_PLACING":
        monkeypatch.setattr(PythonChild, "connected", lambda *_: None)

    async def main() -> None:
        client = make_client()
        with pytest.raises(EngineError, match=said):
            await client.start()
        await client.close()

    run(main())


def test_an_engine_that_cannot_be_started_again_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "_PAUSES", (0.0, 0.0))

    async def test(llm: AsyncLLM, client: ProcessClient) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        os.kill(client.pid or 0, signal.SIGSTOP)  # or it might answer before it is killed
        asked = asyncio.create_task(last(llm.generate(IDS, FOREVER)))
        await asyncio.sleep(0)
        os.kill(client.pid or 0, signal.SIGKILL)
        with pytest.raises(EngineLost, match=r"given up.*exit status 1"):
            await asked
        assert client.health().state is ClientState.FAILED
        with pytest.raises(EngineError, match="SIGKILL"):
            await last(llm.generate(IDS))

    served(test)


def test_last_words_are_heard_though_nothing_was_read_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ended(process: EngineProcess, seconds: float) -> None:
        await asyncio.sleep(0.05)
        if process._channel is not None:
            assert process.child.wait(120)  # type: ignore[attr-defined]

    async def start() -> None:
        client = make_client({"model": "no/such/folder"})
        with pytest.raises(CheckpointError, match="no/such/folder"):
            await client.start()
        await client.close()

    monkeypatch.setattr(EngineProcess, "ended", ended)
    run(start())


def test_what_cannot_start_says_what_it_would_say_in_this_process() -> None:
    async def start(**settings: Any) -> None:
        registry = Registry.discover()
        client = ProcessClient(settings_class(registry)(**settings), registry)
        try:
            with pytest.raises(EngineError, match="cannot be asked"):
                await client.metrics()
            await client.start()
        finally:
            await client.close()

    with pytest.raises(CheckpointError, match="no/such/folder"):
        run(start(model="no/such/folder"))


def test_no_process_is_left_if_the_front_end_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise CheckpointError("the tokenizer is gone")

    monkeypatch.setattr(process_client, "make_front_end", fail)

    async def main() -> None:
        client = make_client()
        with pytest.raises(CheckpointError, match="is gone"):
            await client.start()
        assert client.pid is None
        assert client.health().state is ClientState.FAILED

    before = {each.pid for each in psutil.Process().children()}
    run(main())
    assert {each.pid for each in psutil.Process().children()} <= before


def test_parts_of_a_program_are_refused_by_name() -> None:
    from paged_core.plugins.component import Profile

    registry = Registry.discover().extended(Profile("mine", "{}"), plugin="of-mine")
    with pytest.raises(SettingsError, match="of-mine"):
        ProcessClient(settings_class(registry)(), registry)
