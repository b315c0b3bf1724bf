"""Conversations: the turns of a workload, and the full prompt of each.

Standard library only: peers in other environments use it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paged_plugins.bench.workloads import Item


def rounds(items: Sequence[Item]) -> list[list[int]]:
    """Return the indices of all first turns, then of all second turns, and so on.

    Items that follow nothing are first turns; the order within a turn is that of the items.

    Raises:
        ValueError: an item follows a later item, or one that another item already follows.
    """
    turns: list[int] = []
    found: list[list[int]] = []
    followed: set[int] = set()
    for index, item in enumerate(items):
        turn = 0
        if item.follows is not None:
            if not 0 <= item.follows < index:
                raise ValueError(f"item {index} follows item {item.follows}, which is not earlier")
            if item.follows in followed:
                raise ValueError(f"item {index} is the second to follow item {item.follows}")
            followed.add(item.follows)
            turn = turns[item.follows] + 1
        turns.append(turn)
        if turn == len(found):
            found.append([])
        found[turn].append(index)
    return found


def prompt_lengths(items: Sequence[Item]) -> list[int]:
    """Return the length of the full prompt of each item."""
    lengths: list[int] = []
    for item in items:
        before = 0
        if item.follows is not None:
            before = lengths[item.follows] + items[item.follows].num_output
        lengths.append(before + len(item.prompt))
    return lengths


def longest(items: Sequence[Item]) -> int:
    """Return the length of the longest item in tokens, full prompt and output."""
    lengths = zip(prompt_lengths(items), items, strict=True)
    return max((length + item.num_output for length, item in lengths), default=0)


def conversations(items: Sequence[Item]) -> list[list[int]]:
    """Return the indices of the turns of each conversation; a single request is one turn."""
    found: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        chain = [] if item.follows is None else found.pop(item.follows)
        found[index] = [*chain, index]
    return list(found.values())


def is_batch(items: Sequence[Item]) -> bool:
    """Whether they are what the roofline is known of: nothing waits but later turns of chains."""
    followed = [item.follows for item in items if item.follows is not None]
    is_chain = len(set(followed)) == len(followed)
    return is_chain and not any(item.at or item.n > 1 for item in items)


def full_prompt(
    items: Sequence[Item], index: int, outputs: Mapping[int, Sequence[int]]
) -> list[int]:
    """Return the full prompt of an item.

    Args:
        outputs: by index, the tokens generated for every earlier turn of its conversation.

    Raises:
        KeyError: an earlier turn has not been generated.
    """
    parts: list[list[int]] = [items[index].prompt]
    before = items[index].follows
    while before is not None:
        parts += [list(outputs[before]), items[before].prompt]
        before = items[before].follows
    return [token for part in reversed(parts) for token in part]
