"""Groups and caches as policies see them, without an engine; a check that they stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import chain, product, repeat
from random import Random
from typing import Any

from paged_core.cache.kv_cache import KVCache
from paged_core.errors import OutOfBlocks
from paged_core.field_rules import MOST
from paged_core.ids import SeqId
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState, Status
from paged_testing.engines import memory_settings, start_memory_engine
from paged_testing.use import instructions
from paged_testing.workloads import simple_request

_FACTS: Sequence[tuple[int, int | None, int, float | None, str, int, float]] = (
    # tokens of the prompt, max_tokens, priority, deadline, tenant, n, arrival
    (5, 4, 1, None, "a", 1, 0.0),
    (7, 12, 0, 50.0, "", 2, 1.0),
    (1, 1, 2, 5.0, "b", 1, 2.0),
    (16, None, 1, None, "a", 1, 3.0),
    (5, 12, 1, 5.0, "a", 3, 4.0),
    (12, 2, 0, None, "b", 1, 5.0),
    (3, 10, 2, 50.0, "", 1, 6.0),
    (5, 4, 1, None, "", 1, 7.0),
)


def written_requests() -> list[Request]:
    """Eight requests that differ in every property a policy may look at; some are equal in most."""
    return [
        Request(
            id=f"r{number}",
            prompt=tuple((number + place) % 2 for place in range(length)),
            sampling=SamplingParams(n=n, max_tokens=max_tokens),
            priority=priority,
            deadline=deadline,
            tenant=tenant,
            arrival=arrival,
        )
        for number, (length, max_tokens, priority, deadline, tenant, n, arrival) in enumerate(
            _FACTS
        )
    ]


_EXTREMES: Mapping[str, Sequence[Any]] = {
    "id": ("\N{SNOWMAN}", "\0"),
    "priority": (-MOST, MOST, MOST >> 1, 10_000, -10_000, -1),
    "deadline": (-1e18, 0.0, 1e300),
    "arrival": (-1e9, 1e9),
    "tenant": ("\N{SNOWMAN}", "x" * 5000, "\0"),
    "session": ("\N{SNOWMAN}", "x" * 5000),
    "cache_salt": ("", "x" * 5000),
    "prompt": ((MOST,), (0,) * 5000),
    "sampling": (SamplingParams(max_tokens=MOST), SamplingParams(max_tokens=None)),
}
"""Fields, and the least and greatest values that they are likely to have."""


def extreme_requests() -> list[Request]:
    """Requests of which one thing has a value as small or as large as it may be."""
    usual = written_requests()[0]
    return [
        replace(usual, **{"id": f"{field} {place}", field: value})
        for field, values in _EXTREMES.items()
        for place, value in enumerate(values)
    ]


NUM_TENANTS = 1100
"""More than small tables hold."""


def requests_of_tenants(usual: Request, count: int = NUM_TENANTS) -> list[Request]:
    """Requests like a usual one, each of a tenant of its own."""
    return [replace(usual, id=f"t{number}", tenant=f"t{number}") for number in range(count)]


_DRAWN: Mapping[str, Sequence[Any]] = {
    "priority": (0, 0, 1, -1, 7),
    "deadline": (None, None, 0.0, 3.5, 50.0, -2.0),
    "tenant": ("", "a", "b"),
    "session": ("", "s"),
    "cache_salt": (None, None, "", "salt"),
}
NUM_DRAWN = 24
"""Numbers of sets of requests that are tried."""


def drawn_requests(number: int) -> list[Request]:
    """Four requests of values that are often 0, absent, equal, or on a bound, by a set's number.

    Their prompts begin alike.
    """
    drawn, requests = Random(number), list[Request]()
    for place in range(4):
        fields = {name: drawn.choice(values) for name, values in _DRAWN.items()}
        asked = SamplingParams(
            n=drawn.choice((1, 1, 2, 3)), max_tokens=drawn.choice((1, 2, 4, 12, None))
        )
        prompt = tuple(at % 2 for at in range(drawn.choice((1, 4, 5, 8, 16))))
        arrival = float(place // 2)
        made = Request(id=f"d{place}", prompt=prompt, sampling=asked, arrival=arrival, **fields)
        requests.append(made)
    return requests


def drawn_numbers(number: int) -> list[int]:
    """A small number for each of :func:`drawn_requests`, such as of preemptions; some are equal."""
    drawn = Random(number)
    return [drawn.choice((0, 0, 1, 2, 3, 4, 5, 8, 10)) for _ in range(4)]


@lru_cache
def forked_requests() -> Sequence[tuple[Sequence[Request], Sequence[int]]]:
    """Sets of four requests, with how many sequences of each have ended.

    Short and long prompts, of which all are computed, and which begin alike; each with as many
    sequences, live and ended, as any other: sums over ``sequences``, over ``live``, over blocks and
    over prompts differ from each other, on both sides of any threshold.
    """
    shapes = [
        (length, n, num_ended)
        for length, n in product((1, 3, 8, 16, 21, 34, 55, 89), (1, 2, 3, 4))
        for num_ended in range(n)
    ]
    Random(0).shuffle(shapes)
    requests = [
        Request(
            id=f"{length}.{n}.{num_ended}",
            prompt=tuple(at % 2 for at in range(length)),
            sampling=SamplingParams(n=n, max_tokens=24),
        )
        for length, n, num_ended in shapes
    ]
    return [
        (requests[at : at + 4], [num_ended for *_, num_ended in shapes[at : at + 4]])
        for at in range(0, len(shapes), 4)
    ]


class WrittenLengths(LengthPredictor):
    """Expects lengths that differ between requests which are alike in most; of some, none."""

    learns = True
    learned = 0
    """Changes what it expects."""

    def expect(self, request: Request, /) -> ExpectedLength | None:
        number = len(request.prompt) + 3 * (request.sampling.max_tokens or 2) + sum(request.prompt)
        number += 7 * len(request.tenant)
        return ExpectedLength(1.0 + (number + 7 * self.learned) % 23) if number % 5 else None


def let_go(groups: list[SequenceGroup]) -> None:
    """Empty a list of groups that nothing else holds: the next ones are made where these were in
    memory, the first of them where the last was."""
    while groups:
        group = groups.pop(0)
        group.sequences.clear()  # which refer to it
        group.live.clear()


WRITTEN_SHARES = (3, 13, 0, 9, 4, 11, 2, 4)
"""For :func:`running_groups`: of one the whole prompt is computed, in forks; some just began."""


def empty_cache(registry: Registry, num_blocks: int = 64, **values: Any) -> KVCache:
    """An empty cache."""
    checks = "full" if num_blocks <= 64 else "basic"  # each admission checks all blocks
    settings = memory_settings(registry, num_blocks=num_blocks, checks=checks, **values)
    return start_memory_engine(settings, registry).kv_cache


def waiting_groups(requests: Sequence[Request], first: int = 0) -> list[SequenceGroup]:
    """Groups of these requests in arrival order, of which the first has a number; none has run."""
    groups = []
    for number, request in enumerate(requests, first):
        group = SequenceGroup(request, number, SeqId(16 * number))
        group.max_length = len(request.prompt) + (request.sampling.max_tokens or 64)
        groups.append(group)
    return groups


def preempt(groups: Iterable[SequenceGroup], often: Iterable[int]) -> None:
    """Let groups have been preempted so often, each eight seconds after the other."""
    for group, number in zip(groups, often, strict=False):
        group.num_preemptions, group.waiting_since = number, group.arrival + 8.0 * number


def running_groups(
    cache: KVCache,
    requests: Sequence[Request],
    computed: Sequence[int],
    ended: Iterable[int] = (),
    *,
    grown: bool = True,
    first: int = 0,
) -> list[SequenceGroup]:
    """Running groups of these requests, partly prefilled, as many as the cache has blocks for.

    They share cached blocks. Those whose whole prompt is computed have forked; of some others, a
    step in flight computes tokens.

    Args:
        computed: for each request, a number that determines how much of its prompt is computed.
        ended: how many sequences of those have ended; by default of several the first.
        grown: whether those have generated something, each sequence more than the one before it,
            and some have ended.
        first: the number of the first.
    """
    groups = []
    waiting = zip(waiting_groups(requests, first), computed, chain(ended, repeat(1)), strict=False)
    for group, share, num_ended in waiting:
        (sequence,) = group.live
        num_computed = 1 + share % len(sequence.tokens)
        hit = cache.lookup(sequence, num_computed - 1)
        group.num_cached = len(hit.blocks) * cache.block_size
        try:
            cache.admit(sequence, num_computed - group.num_cached, hit, group.num_cached)
        except OutOfBlocks:
            break
        sequence.num_scheduled = sequence.num_computed = num_computed
        group.status, group.admitted_at = Status.RUNNING, group.arrival
        if num_computed == len(sequence.tokens):
            for index in range(1, group.num_seqs):
                child = SequenceState(
                    SeqId(sequence.id + index), group, index, list(sequence.tokens)
                )
                group.sequences.append(child)
                group.live.append(child)
                cache.fork(sequence, child)
            group.forked = True
            if grown:
                group.first_token_at = group.arrival
                _grow(cache, group, num_ended)
        elif share % 2:
            sequence.num_computed = max(group.num_cached, num_computed // 2)
        groups.append(group)
    return groups


def _grow(cache: KVCache, group: SequenceGroup, num_ended: int) -> None:
    for sequence in group.sequences:
        _generate(cache, sequence, 6 + 3 * sequence.index)
    for _ in range(min(num_ended, len(group.sequences) - 1)):
        first = group.live.pop(0)
        first.finish_reason = FinishReason.STOP
        cache.release(first)


def _generate(cache: KVCache, sequence: SequenceState, num_tokens: int) -> None:
    """Let a sequence have so many tokens more, which are not the last that it may have."""
    if (most := sequence.group.max_length - 1 - len(sequence.tokens)) <= 0:
        return
    sequence.tokens += [7] * min(most, num_tokens)
    if num_new := len(sequence.tokens) - 1 - sequence.num_scheduled:
        cache.reserve(sequence, num_new)
    sequence.num_scheduled = sequence.num_computed = len(sequence.tokens) - 1


def growing_groups(registry: Registry) -> Iterator[tuple[KVCache, list[SequenceGroup]]]:
    """Yield a cache and the same groups in it again and again: they run, generate ever more than
    their prompts have, most are preempted or swapped out, and one is about to end."""
    cache = empty_cache(registry, 512, max_model_len=256, num_host_blocks=256, preemption="swap")
    requests = [
        replace(each, sampling=replace(each.sampling, max_tokens=160))
        for each in written_requests()
    ]
    groups = running_groups(cache, requests, [len(each.prompt) - 1 for each in requests])
    yield cache, groups
    for num_tokens in (1, 60):
        for sequence in chain.from_iterable(group.live for group in groups):
            _generate(cache, sequence, num_tokens)
        yield cache, groups
    for group in groups[::2]:
        cache.release_group(group)
        for sequence in group.live:
            sequence.num_scheduled = sequence.num_computed = 0
        group.status, group.waiting_since, group.num_preemptions = Status.WAITING, 9.0, 1
    for group in groups[3::4]:
        cache.swap_out(group)
        group.status, group.waiting_since = Status.SWAPPED, 9.0
    for sequence in groups[1].live:  # whose last token is being sampled
        if type(sequence) is SequenceState:  # and no view, which counts them itself
            sequence.num_unknown = groups[1].max_length - len(sequence.tokens)
    yield cache, groups


_LENGTHS = ((64, 64), (4096, 64), (64, 4096))
"""Tokens of prompts, and of answers."""


def long_groups(
    registry: Registry, prompt: int, answer: int, asked: bool, block_size: int = 2 * 4096
) -> tuple[KVCache, list[SequenceGroup]]:
    """A cache, and running groups in it of so many tokens, by default each in one block.

    Args:
        asked: whether the requests ask for all that they may, and each has been preempted.
    """
    num_blocks = 16 * 2 * 4096 // block_size
    cache = empty_cache(registry, num_blocks, block_size=block_size, max_model_len=2 * 4096)
    names = [f"r{number}" for number in range(4)]
    requests = [simple_request(name, prompt, 4096, n=1 + asked) for name in names]
    if asked:
        requests = [replace(each, **_ALL_FIELDS) for each in requests]
    groups = running_groups(cache, requests, [prompt - 1] * 4, grown=False)
    for group in groups:
        group.first_token_at, group.num_preemptions = 0.0, int(asked)
        for sequence in group.live:
            _generate(cache, sequence, answer)
    return cache, groups


_ALL_FIELDS: Mapping[str, Any] = {
    **{"priority": 1, "deadline": 50.0, "tenant": "a", "session": "s", "cache_salt": "salt"},
}


def check_costs_by_length(
    calls: Callable[[int, int, bool], Callable[[], object]], package: str, what: str
) -> None:
    """Check that calls about requests cost the same, however long these are.

    Args:
        calls: returns what calls the component about :func:`long_groups` of such lengths.
        what: is called.
    """
    for asked in (False, True):
        costs = [instructions(calls(*each, asked), package, everywhere=True) for each in _LENGTHS]
        for (prompt, answer), cost in zip(_LENGTHS, costs, strict=True):
            assert cost <= 2 * costs[0] + 2000, (  # there may be another path
                f"{what} takes {costs[0]} instructions and items where prompts and answers have 64 "
                f"tokens, {cost} where they have {prompt} and {answer}"
            )


@contextmanager
def untouched(groups: Iterable[SequenceGroup]) -> Iterator[None]:
    """Check that no field of ``groups``, their sequences or block tables changes in the block.

    Content keys are left out: a look-up in the cache computes and keeps them.

    Raises:
        AssertionError: a field has changed; the message names it.
    """
    watched = list(groups)
    before = _facts(watched)
    yield
    after = _facts(watched)
    for field, value in before.items():
        assert after.get(field) == value, f"it changed {field} from {value} to {after.get(field)}"
    assert len(after) == len(before), f"it added {sorted(after.keys() - before.keys())}"


def _facts(groups: Iterable[SequenceGroup]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for group in groups:
        name = f"group {group.id!r}"
        _add(facts, name, group)
        for sequence in group.sequences:
            _add(facts, f"{name}.sequences[{sequence.index}]", sequence)
            _add(facts, f"{name}.sequences[{sequence.index}].table", sequence.table)
    return facts


def _add(facts: dict[str, Any], name: str, subject: object) -> None:
    for kind in type(subject).__mro__:
        for field in getattr(kind, "__slots__", ()):
            if field != "keys":
                facts[f"{name}.{field}"] = _frozen(getattr(subject, field))


def _frozen(value: Any) -> Any:
    """The present value of a field; containers are copied."""
    if isinstance(value, list):
        return [_frozen(item) for item in value]
    return dict(value) if isinstance(value, dict) else value
