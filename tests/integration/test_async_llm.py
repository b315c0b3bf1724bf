"""``AsyncLLM`` over an engine in a thread: it gives what ``LLM`` gives, as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from paged_core import LLM, AsyncLLM, RequestOutput, SamplingParams
from paged_core.client.engine_client import ClientState
from paged_core.errors import EngineError, EngineLost, RequestError
from paged_core.plugins.registry import Registry
from server.outputs import comparable, last

PROMPTS = ["What is a block table?", "What does copy-on-write do?", "Hello", "3 + 4 ="]
CASES = [
    SamplingParams(max_tokens=24),
    SamplingParams(max_tokens=40, stop=[" a"], include_stop_str_in_output=True),
    SamplingParams(max_tokens=16, n=2, best_of=4, temperature=0.9, seed=5),
    SamplingParams(max_tokens=12, n=2, beam_width=3),
    SamplingParams(max_tokens=8, logprobs=3, prompt_logprobs=2),
    SamplingParams(max_tokens=8, detokenize=False),
]


def run(test: Callable[[AsyncLLM], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with AsyncLLM(num_blocks=256, max_model_len=256, **settings) as served:
            return await asyncio.wait_for(test(served), 60)

    return asyncio.run(main())


def test_it_answers_as_llm_does() -> None:
    messages = [{"role": "user", "content": "What is a block table?"}]
    short = SamplingParams(max_tokens=12)
    with LLM(num_blocks=256, max_model_len=256) as llm:
        expected = [llm.generate(PROMPTS, sampling) for sampling in CASES]
        expected.append(llm.chat(messages, short))

    async def ask(served: AsyncLLM) -> list[list[RequestOutput]]:
        asked = [[served.generate(each, sampling) for each in PROMPTS] for sampling in CASES]
        asked.append([served.chat(messages, short)])
        return [await asyncio.gather(*map(last, each)) for each in asked]

    for found, wanted in zip(run(ask), expected, strict=True):
        assert [comparable(each) for each in found] == [comparable(each) for each in wanted]


def test_leaving_the_loop_and_cancelling_abort_the_request() -> None:
    async def ask(served: AsyncLLM) -> None:
        forever = SamplingParams(max_tokens=200, ignore_eos=True)
        async with aclosing(served.generate("Hello", forever)) as outputs:
            async for _ in outputs:
                break
        task = asyncio.create_task(last(served.generate("Hello", forever)))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while (found := await served.get_metrics()).num_unfinished:
            await asyncio.sleep(0.01)
        assert found.num_free_blocks == found.num_blocks
        assert served.client.health().num_unfinished == 0
        assert served.client.health().num_waiting_tokens == 0

    run(ask)


def test_refusals_come_from_the_loop_that_asks() -> None:
    async def ask(served: AsyncLLM) -> None:
        with pytest.raises(RequestError, match=r"max_model_len|longer"):
            await last(served.generate([1] * 300))
        with pytest.raises(RequestError, match="being served already"):
            await asyncio.gather(
                *(last(served.generate("Hello", request_id="same")) for _ in range(2))
            )
        with pytest.raises(RequestError, match="does not fill a block"):
            await served.pin_prefix("Hi")
        with pytest.raises(RequestError, match="pin 'x'"):
            await served.release("x")
        assert (await last(served.generate("Hello"))).finished

    run(ask)


def test_a_pin_whose_caller_is_cancelled_is_released() -> None:
    async def ask(served: AsyncLLM) -> None:
        prompt = "What is a block table? " * 6
        for turns in (0, 1, 2, 4, 8, 16):  # before it is asked for, while it is computed, and after
            pinning = asyncio.create_task(served.pin_prefix(prompt))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            pinning.cancel()
            found = (await asyncio.gather(pinning, return_exceptions=True))[0]
            if isinstance(found, str):
                await served.release(found)
            assert (await last(served.generate("Hello", SamplingParams(max_tokens=2)))).finished
            while not await served.reset_prefix_cache():  # a pin would hold some of it
                await asyncio.sleep(0.001)

    run(ask)


def test_drain_finishes_what_was_accepted_and_takes_no_more() -> None:
    async def ask(served: AsyncLLM) -> None:
        first = asyncio.create_task(last(served.generate("Hello", SamplingParams(max_tokens=32))))
        while not served.client.health().num_unfinished:
            await asyncio.sleep(0)
        draining = asyncio.create_task(served.client.drain())
        await asyncio.sleep(0)
        assert served.client.health().state is ClientState.DRAINING
        with pytest.raises(EngineError, match="shut down"):
            await last(served.generate("Hello"))
        await draining
        assert (await first).finished

    run(ask)


def test_closing_ends_what_is_read() -> None:
    async def main() -> RequestOutput:
        served = AsyncLLM(num_blocks=256, max_model_len=256)
        async with served:
            outputs = served.generate("Hello", SamplingParams(max_tokens=200, ignore_eos=True))
            await anext(outputs)
        return await last(outputs)

    output = asyncio.run(main())
    assert output.outputs[0].finish_reason == "abort"


def test_an_engine_that_fails_ends_its_requests_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paged_core.engine.engine import Engine

    async def ask(served: AsyncLLM) -> None:
        outputs = served.generate("Hello", SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(outputs)

        def fail(self: Engine) -> Any:
            raise RuntimeError("out of paper")

        monkeypatch.setattr(Engine, "step", fail)
        with pytest.raises(EngineLost, match="out of paper"):
            await last(outputs)
        assert served.client.health().state is ClientState.FAILED
        with pytest.raises(EngineError, match="out of paper"):
            await last(served.generate("Hello"))
        with pytest.raises(EngineError, match="out of paper"):
            await served.get_metrics()

    run(ask)
    assert Registry.discover()


def test_another_event_loop_is_told_so() -> None:
    """A notebook, or a second ``asyncio.run``, would wait for what another loop is told."""
    llm = AsyncLLM(executor="memory", num_blocks=64)
    first = asyncio.new_event_loop()
    first.run_until_complete(llm.start())
    with pytest.raises(EngineError, match="another event loop"):
        asyncio.run(last(llm.generate([1, 2, 3])))
    first.run_until_complete(llm.close())
    first.close()
