"""Dashboards that were made for vLLM show this engine."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from urllib.request import urlopen

import pytest

from paged_core import AsyncLLM, SamplingParams

pytest.importorskip("prometheus_client")

from server.promql import Scrapes, values
from server.served import Served

EXPRESSIONS = [
    line
    for line in Path(__file__).with_name("dashboard.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def scrapes() -> Scrapes:
    async def run() -> Scrapes:
        async with AsyncLLM(num_blocks=256, max_model_len=256, observers=["metrics"]) as llm:

            async def ask(number: int) -> None:
                prompt = f"What is a block table? {number % 3}"
                async for _ in llm.generate(prompt, SamplingParams(max_tokens=4 + number)):
                    pass

            before = await llm.client.report("metrics")
            await asyncio.gather(*map(ask, range(12)))
            async for _ in llm.generate("Hello", SamplingParams(max_tokens=200, ignore_eos=True)):
                break
            while (await llm.get_metrics()).num_unfinished:
                await asyncio.sleep(0.01)
            after = await llm.client.report("metrics")
            return Scrapes(before, after, 60.0, model_name="demo", __rate_interval="1m")

    return asyncio.run(run())


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_has_a_value(scrapes: Scrapes, expression: str) -> None:
    found = values(scrapes.evaluate(expression))
    assert found
    assert all(math.isfinite(value) and value >= 0 for value in found)
    if "num_requests" not in expression and "kv_cache" not in expression:
        assert max(found) > 0


def test_what_is_counted_adds_up(scrapes: Scrapes) -> None:
    def one(expression: str) -> float:
        (value,) = values(scrapes.evaluate(expression))
        return float(value)

    model = '{model_name="demo"}'
    reasons = {
        dict(labels)["finished_reason"]: count
        for labels, count in scrapes.evaluate(f"vllm:request_success_total{model}").items()
    }
    assert reasons["abort"] == 1
    assert sum(reasons.values()) == 13
    by_source = scrapes.evaluate(f"vllm:prompt_tokens_by_source_total{model}")
    assert sum(by_source.values()) == one(f"vllm:prompt_tokens_total{model}")
    assert one(f"vllm:request_max_num_generation_tokens_count{model}") == 13
    assert one(f"vllm:request_num_preemptions_sum{model}") == 0
    info = dict(next(iter(scrapes.evaluate(f"vllm:cache_config_info{model}"))))
    assert info["block_size"] == "16"
    assert info["num_gpu_blocks"] == "256"
    assert info["kv_cache_size_tokens"] == "4096"
    reasons_to_wait = scrapes.evaluate(f"vllm:num_requests_waiting_by_reason{model}")
    assert sum(reasons_to_wait.values()) == one(f"vllm:num_requests_waiting{model}") == 0


def test_the_server_adds_what_it_refused() -> None:
    with Served() as served:
        with urlopen(f"{served.address}/metrics") as answer:
            text = answer.read().decode()
        scraped = Scrapes(text, text, 1.0)
        found = scraped.evaluate('vllm:admission_rejections_total{model_name="demo"}')
    assert {dict(labels)["reason"]: count for labels, count in found.items()} == {
        "max_num_queued_reqs": 0,
        "max_num_queued_tokens": 0,
    }
