"""A model without weights, for the fakes of other engines.

What a sequence generates follows from all of its tokens, so that tokens which were dropped, mixed
up or left over change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

VOCAB_SIZE = 97


def next_token(tokens: Sequence[int]) -> int:
    """Return what follows ``tokens``."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB_SIZE


def generated(prompt: Sequence[int], num_output: int) -> list[int]:
    """Return what a prompt is completed with."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_output:
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def expected(items: Sequence[Any]) -> list[list[int]]:
    """Return what every engine must generate for a workload."""
    texts: dict[int | None, list[int]] = {None: []}
    outputs = []
    for place, item in enumerate(items):
        prompt = texts[item.follows] + item.prompt
        outputs.append(generated(prompt, item.num_output))
        texts[place] = prompt + outputs[-1]
    return outputs
