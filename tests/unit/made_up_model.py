"""A model without weights, for the fakes of other engines.

What a sequence generates follows from all of its tokens, so that tokens which were dropped, mixed
up or left over change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from paged_plugins.bench.turns import full_prompt
from paged_plugins.bench.workloads import Item

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


def expected(items: Sequence[Item]) -> list[list[int]]:
    """Return what every engine must generate for a workload."""
    outputs: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        outputs[place] = generated(full_prompt(items, place, outputs), item.num_output)
    return list(outputs.values())
