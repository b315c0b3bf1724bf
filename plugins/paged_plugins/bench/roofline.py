"""The least time that a workload can take, from the machine's memory bandwidth and FLOP rate.

Both rates are measured at that moment, because those of a shared machine vary. A step can be no
faster than reading every weight and every cached key and value once, nor than its arithmetic; the
best schedule prefills all prompts first, a shared prefix once, and then all sequences decode
together. A conversation is one sequence that stays cached: each turn computes only its new tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paged_core.interfaces.model_size import ModelSize
from paged_plugins.bench.rates import Rates
from paged_plugins.workloads.request import WorkloadRequest


def least_seconds(
    firsts: Sequence[WorkloadRequest], model: ModelSize, rates: Rates, num_shared: int
) -> float:
    """Return the least time that requests can take.

    Args:
        firsts: those that follow no other; what follows one is a chain.
        num_shared: length of the prefix that all prompts share; it is computed once.
    """
    layers, head = model.layer_weights, model.head_weights
    sequences = [_chunks(first.family()) for first in firsts]
    total = 0.0
    for step in range(max(map(len, sequences))):
        running = [chunks[step] for chunks in sequences if len(chunks) > step]
        again = num_shared * (len(running) - 1)
        computed = sum(new for new, _ in running)
        attended = sum(new * cached + new * new / 2 for new, cached in running)
        num_read = sum(cached for _, cached in running)
        if step:
            num_read -= again
        else:
            computed -= again
            attended -= again * num_shared / 2
        sums = layers * computed + head * len(running)
        operations = 2 * sums + model.attention_operations * attended
        num_bytes = model.weight_bytes + model.cache_bytes_per_token * num_read
        total += max(operations / rates.sums, num_bytes / rates.read)
    return total


def _chunks(turns: Iterable[WorkloadRequest]) -> list[tuple[int, int]]:
    """Return the computed and the cached tokens of every step of a conversation.

    A decoded token attends to itself, too. The last token of a turn is computed with the next turn.
    """
    chunks: list[tuple[int, int]] = []
    length = 0
    for turn in turns:
        new = turn.num_new + bool(length)
        cached = length - bool(length)
        chunks.append((new, cached))
        length = new + cached
        chunks += [(1, length + place) for place in range(1, turn.output)]
        length += turn.output
    return chunks
