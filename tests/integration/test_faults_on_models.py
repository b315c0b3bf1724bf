"""A component that raises once in an LLM on a real model: what follows has the same text."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from properties.fault_injection import Injector, Site

PROMPTS = ["Once upon a time there was", "Once upon a time there was a cat", "The sun"]
GREEDY = SamplingParams(max_tokens=12)


def texts(llm: LLM) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(
    ("site", "number"),
    [
        (("block_allocator", "allocate"), 3),
        (("block_allocator", "cache"), 2),
        (("block_allocator", "free"), 0),
        (("evictor", "add"), 1),
        (("scheduler", "schedule"), 2),
        (("scheduler", "remove"), 1),
        (("executor", "submit"), 4),
    ],
    ids=str,
)
@pytest.mark.parametrize("after", [False, True])
def test_text_after_a_fault_is_the_text_without(site: Site, number: int, after: bool) -> None:
    injector = Injector(site, number, after=after)
    with injector.installed(), LLM(block_size=4, num_blocks=64) as llm:
        with capture_logs() as logs:
            llm.generate(PROMPTS, GREEDY)
        assert injector.raised
        (reason,) = [log["reason"] for log in logs if "reason" in log]
        assert reason.startswith(f"{site[0]} ")
        assert "injected" in reason
        again = texts(llm)
    with LLM(block_size=4, num_blocks=64) as llm:
        assert again == texts(llm)
