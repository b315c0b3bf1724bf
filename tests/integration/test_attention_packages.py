"""A whole engine computes attention by a package, of which stand-ins take the place."""

from __future__ import annotations

from typing import Any

import pytest

from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from unit.attention_packages.install import install

COMMON = "The quick brown fox jumps over the lazy dog. "
PROMPTS = [COMMON + tail for tail in ("One", "Two two two", "Three", "")]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0)


def texts(attention: Any, preemption: str, block_size: int) -> tuple[list[list[int]], int]:
    """The tokens of each output, and how often a group was preempted."""
    with LLM(
        attention=attention,
        dtype="bfloat16",
        block_size=block_size,
        num_blocks=12 if block_size < 256 else 2,
        max_model_len=40,
        preemption=preemption,
        scheduler={"max_num_batched_tokens": 9},
    ) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        return [
            list(each.outputs[0].token_ids) for each in outputs
        ], llm.get_metrics().num_preemptions


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize(("provider", "block_size"), [("fa3", 4), ("fa2", 256)])
def test_the_text_is_that_of_torch(
    provider: str, block_size: int, preemption: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under preemption, chunks and prefix hits."""
    install(monkeypatch, provider)
    made = texts({"name": "flash_attn", "provider": provider}, preemption, block_size)
    assert made == texts("torch", preemption, block_size)
    assert made[1] > 0 or block_size == 256
