"""Outputs of ``AsyncLLM``, and what of them is compared."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from paged_core import RequestOutput


async def last(outputs: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
    """Return the last of them: the whole output."""
    async with aclosing(outputs):
        return [output async for output in outputs][-1]


def comparable(output: RequestOutput) -> Any:
    """Return all of an output but its id, its times, and what the cache served."""
    rows = [
        (each.index, each.text, each.token_ids, each.finish_reason, each.stop_reason, each.logprobs)
        for each in output.outputs
    ]
    return output.prompt, output.prompt_token_ids, output.prompt_logprobs, rows, output.finished
