"""Requests to serve: strategies that draw difficult ones, and situations with too few blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from reprlib import repr as shortened
from typing import Any

from hypothesis import strategies as st

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams


@dataclass(frozen=True)
class Workload:
    """Requests with the step in which each arrives, and ids to abort with the step before which."""

    requests: tuple[tuple[int, Request], ...]
    aborts: tuple[tuple[int, str], ...] = ()

    def __repr__(self) -> str:
        """Each request in a line: the step of its arrival, and what is not as by default."""
        lines = [f"{step}: {brief(request)}" for step, request in self.requests]
        lines += [f"{step}: abort {request_id}" for step, request_id in self.aborts]
        return "".join(f"\n    {line}" for line in lines)


def brief(request: Request) -> str:
    """A request in a line: its id, its prompt, and what is not as by default."""
    length = len(request.prompt)
    is_short = length < 40 and set(request.prompt) <= {0, 1}
    prompt = "".join(map(str, request.prompt)) if is_short else f"of {length}"
    own = Request(id=request.id, prompt=request.prompt)
    asked = [*_differences(request.sampling, SamplingParams()), *_differences(request, own)]
    return f"{request.id}(prompt {prompt}{''.join(f', {each}' for each in asked)})"


def _differences(record: Any, usual: Any) -> Iterator[str]:
    """Fields that two records have different values of."""
    for name in (each.name for each in fields(record)):
        value = getattr(record, name)
        if name != "sampling" and value != getattr(usual, name):
            yield f"{name}={shortened(value)}"


def simple_request(
    name: str, prompt: int | tuple[int, ...], max_tokens: int, *, n: int = 1, priority: int = 0
) -> Request:
    """Return a greedy request.

    Args:
        prompt: token ids, or their number: then they begin with a hash of ``name``, so that no two
            requests share a prefix.
    """
    if isinstance(prompt, int):
        first = 1000 * (1 + sum(name.encode()) % 10_000)
        prompt = tuple(range(first, first + prompt))
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    return Request(id=name, prompt=prompt, sampling=sampling, priority=priority)


def unlike(requests: Iterable[Request], number: int) -> list[Request]:
    """Requests as those given, in all that names them unlike those of other numbers."""
    return [
        replace(
            request,
            id=f"{request.id} {number}",
            prompt=tuple(2 * number + token for token in request.prompt),
            tenant=f"{request.tenant} {number}",
            session=f"{place} {number}",
            cache_salt=f"salt {number}",
            priority=request.priority + 8 * number,
        )
        for place, request in enumerate(requests)
    ]


_KINDS = st.sampled_from(["plain"] * 6 + ["best_of", "beams"])
_WIDTHS = st.sampled_from([1, 1, 1, 2, 3])
_LENGTHS = st.integers(1, 12)
_TEMPERATURES = st.sampled_from([0.0, 1.0])
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=16).map(tuple),
    "priority": st.integers(0, 2),
    "cache_salt": st.sampled_from([None, None, "salt"]),
    "tenant": st.sampled_from(["", "a", "b"]),
    "deadline": st.sampled_from([None, 5.0, 50.0]),
}
_OTHERS = st.fixed_dictionaries(_FIELDS)


@cache  # making a strategy takes longer than drawing from it
@st.composite
def requests(draw: st.DrawFn, name: str = "r", number: int = 0) -> Request:
    """One request over a tiny alphabet, so that prefixes are often shared."""
    kind, n, max_tokens = draw(_KINDS), draw(_WIDTHS), draw(_LENGTHS)
    if kind == "beams":
        sampling = SamplingParams(n=n, beam_width=3, max_tokens=max_tokens)
    elif kind == "best_of":
        sampling = SamplingParams(n=n, best_of=3, temperature=1.0, max_tokens=max_tokens)
    else:
        sampling = SamplingParams(n=n, temperature=draw(_TEMPERATURES), max_tokens=max_tokens)
    others = draw(_OTHERS)
    return Request(id=f"{name}{number}", sampling=sampling, arrival=float(number), **others)


_STEPS = st.integers(0, 8)


@st.composite
def workloads(draw: st.DrawFn, max_requests: int = 7, max_aborts: int = 2) -> Workload:
    """A few requests that arrive within some steps of each other; some are aborted."""
    count = draw(st.integers(1, max_requests))
    arrivals = [(draw(_STEPS), draw(requests("r", number))) for number in range(count)]
    ids = [request.id for _, request in arrivals]
    aborts = draw(
        st.lists(st.tuples(st.integers(0, 12), st.sampled_from(ids)), max_size=max_aborts)
    )
    return Workload(tuple(arrivals), tuple(aborts))


@dataclass(frozen=True)
class Situation:
    """A workload, and settings of a small engine that serves it."""

    workload: Workload
    settings: Mapping[str, Any] = field(default_factory=dict)
    outgrown: bool = False
    """True where a request grows until it fills the cache; otherwise every one ends by itself."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the longest request at its end, all of its sequences counted."""
        return max(
            request.sampling.width * (len(request.prompt) + (request.sampling.max_tokens or 0))
            for _, request in self.workload.requests
        )

    def values(self, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """The settings as keywords, with some of them fixed."""
        return {"block_size": 2, "max_model_len": 64, **self.settings, **fixed}


def _arrive(*requests: Request, every: int = 0) -> Workload:
    """These requests, so many steps after one another."""
    return Workload(tuple((every * place, request) for place, request in enumerate(requests)))


def _chooses(name: str, length: int, max_tokens: int, **asked: Any) -> Request:
    """A request that returns the best of several sequences."""
    prompt = tuple((place + len(name)) % 2 for place in range(length))
    return Request(id=name, prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens, **asked))


_SAME = tuple(range(11))
_FORKED = simple_request("A", 5, 20, n=3)
_UNEVEN = tuple(
    replace(
        simple_request(name, 5, 9),
        sampling=SamplingParams(n=3, max_tokens=9, temperature=1.0, stop_token_ids=stops),
    )
    for name, stops in (("A", (252, 640)), ("B", (844, 220)))
)
"""The first sequence of each ends early in the ``memory`` executor, the last before the second."""
_LONG = (simple_request("A", 5, 14), simple_request("B", 7, 12), simple_request("C", 3, 16))
_SWAP: Mapping[str, Any] = {"preemption": "swap"}
_MERGING: Mapping[str, Any] = {
    "block_allocator": {"name": "hash_cached", "merge_duplicates": True},
}

SITUATIONS: Mapping[str, Situation] = {
    "a lone request fills the cache": Situation(
        _arrive(simple_request("A", 6, 40)),
        {"num_blocks": 6},
        outgrown=True,
    ),
    "a lone request fills the cache above a watermark": Situation(
        _arrive(simple_request("A", 6, 40)),
        {"num_blocks": 10, "watermark": 0.2},
        outgrown=True,
    ),
    "a lone request fills the cache and would be swapped": Situation(
        _arrive(simple_request("A", 6, 40)),
        {"num_blocks": 6, "num_host_blocks": 20, **_SWAP},
        outgrown=True,
    ),
    "a request needs all blocks, and others run": Situation(
        _arrive(simple_request("B", 3, 9), simple_request("C", 3, 7), simple_request("A", 13, 6)),
        {"num_blocks": 9},
    ),
    "three requests grow until one is preempted": Situation(_arrive(*_LONG), {"num_blocks": 14}),
    "three requests grow, one after the other": Situation(
        _arrive(*_LONG, every=3), {"num_blocks": 12, "block_allocator": "uncached"}
    ),
    "three requests grow above a watermark": Situation(
        _arrive(*_LONG), {"num_blocks": 14, "watermark": 0.1}
    ),
    "three requests grow and are swapped": Situation(
        _arrive(*_LONG), {"num_blocks": 14, "num_host_blocks": 30, **_SWAP}
    ),
    "the host has no block to swap to": Situation(
        _arrive(*_LONG), {"num_blocks": 14, "num_host_blocks": 0, **_SWAP}
    ),
    "the host has room for one of two": Situation(
        _arrive(*_LONG), {"num_blocks": 12, "num_host_blocks": 6, **_SWAP}
    ),
    "a forked group outgrows the cache": Situation(
        _arrive(_FORKED),
        {"num_blocks": 12},
        outgrown=True,
    ),
    "a forked group outgrows the cache without prefixes": Situation(
        _arrive(_FORKED, simple_request("B", 3, 4)),
        {"num_blocks": 12, "block_allocator": "uncached"},
        outgrown=True,
    ),
    "a forked group that is swapped outgrows the cache": Situation(
        _arrive(_FORKED, simple_request("B", 3, 12)),
        {"num_blocks": 12, "num_host_blocks": 40, **_SWAP},
        outgrown=True,
    ),
    "a forked group is to be swapped and the host is full": Situation(
        _arrive(_FORKED, simple_request("B", 3, 12)),
        {"num_blocks": 14, "num_host_blocks": 3, **_SWAP},
        outgrown=True,
    ),
    "two forked groups compete": Situation(
        _arrive(*_UNEVEN, every=2),
        {"num_blocks": 14},
        outgrown=True,
    ),
    "two forked groups compete and are swapped": Situation(
        _arrive(*_UNEVEN, every=2),
        {"num_blocks": 14, "num_host_blocks": 40, "preemption": "auto"},
        outgrown=True,
    ),
    "a forked group comes before others": Situation(
        _arrive(
            simple_request("A", 6, 10, priority=1),
            simple_request("B", 5, 10, n=3, priority=0),
            simple_request("C", 4, 10, priority=2),
            every=1,
        ),
        {"num_blocks": 15, "queue_order": "priority", "victim": "lowest_priority"},
        outgrown=True,
    ),
    "equal prompts arrive in the same step": Situation(
        _arrive(*(simple_request(name, _SAME, 6) for name in "ABC")), {"num_blocks": 12}
    ),
    "equal prompts arrive step by step": Situation(
        _arrive(*(simple_request(name, _SAME, 6) for name in "ABC"), every=1), {"num_blocks": 12}
    ),
    "equal prompts are merged": Situation(
        _arrive(*(simple_request(name, _SAME, 6) for name in "ABCD")),
        {"num_blocks": 12, **_MERGING},
    ),
    "of equal prompts the first is aborted": Situation(
        Workload(
            tuple((0, simple_request(name, _SAME, 6)) for name in "ABC"), ((1, "A"), (2, "C"))
        ),
        {"num_blocks": 12},
    ),
    "equal prompts arrive in the step in which a forked group grows": Situation(
        Workload(
            (
                (0, simple_request("A", (0, 0, 1), 6, n=3)),
                (4, simple_request("B", (0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0), 10, n=3)),
                (4, simple_request("C", (0, 0, 1, 1, 1), 8, n=2)),
            )
        ),
        {"num_blocks": 15},
        outgrown=True,
    ),
    "a prompt comes again when its blocks are idle": Situation(
        Workload(
            tuple(
                (at, simple_request(name, prompt, 3))
                for at, name, prompt in (
                    (0, "A", _SAME),
                    (8, "B", (*_SAME, 20, 21)),
                    (16, "C", tuple(range(30, 45))),
                    (24, "D", _SAME),
                )
            )
        ),
        {"num_blocks": 9},
    ),
    "better requests arrive while others run": Situation(
        _arrive(
            *(
                replace(
                    simple_request(f"r{at}", 6, (9, 9, 1)[at % 3], priority=9 - at),
                    tenant="ab"[at % 2],
                )
                for at in range(9)
            ),
            every=1,
        ),
        {"num_blocks": 16, "queue_order": "priority"},
    ),
    "requests have quanta": Situation(
        _arrive(*(simple_request(f"r{at}", 4 + at, 8) for at in range(5)), every=1),
        {"num_blocks": 16, "queue_order": {"name": "mlfq", "first_quantum": 2}},
    ),
    "nothing is preempted, since all is reserved": Situation(
        _arrive(*_LONG, every=1), {"num_blocks": 16, "preemption": "never"}
    ),
    "each sequence takes a run of adjacent blocks": Situation(
        _arrive(*_LONG, simple_request("D", 2, 3), every=1),
        {"num_blocks": 24, "block_allocator": "contiguous", "max_model_len": 24},
    ),
    "the best of several are wanted": Situation(
        _arrive(
            _chooses("A", 5, 7, n=2, best_of=3, temperature=1.0),
            _chooses("BB", 6, 7, n=2, beam_width=3),
            simple_request("C", 4, 8),
            every=1,
        ),
        {"num_blocks": 20},
    ),
    "prompts have one token": Situation(
        _arrive(
            *(simple_request(name, (7,), 6) for name in "AB"),
            simple_request("C", (7,), 9, n=2),
            simple_request("D", (8,), 1),
            _chooses("E", 1, 5, n=2, beam_width=2),
            every=1,
        ),
        {"num_blocks": 12},
    ),
    "a swapped group comes to need more than the cache has": Situation(
        _arrive(simple_request("B", 1, 12), _FORKED),
        {"num_blocks": 10, "num_host_blocks": 40, **_SWAP},
        outgrown=True,
    ),
    "a request waits that is worse than one that is swapped": Situation(
        _arrive(
            simple_request("A", 1, 3, priority=2),
            *(simple_request(name, 8, 8, priority=1) for name in "BC"),
        ),
        {"num_blocks": 8, "num_host_blocks": 20, "queue_order": "priority", **_SWAP},
    ),
    "many tenants compete": Situation(
        _arrive(
            *(
                replace(
                    simple_request(f"r{at}", 2 + at % 5, 3 + 7 * at % 9, priority=at % 3),
                    tenant=f"tenant{5 * at % 7}",
                    session=f"session{at % 4}",
                    cache_salt=f"salt{at % 2}",
                    deadline=60.0 - at if at % 3 else None,
                )
                for at in range(16)
            )
        ),
        {"num_blocks": 20},
    ),
    "more requests than may run at once": Situation(
        _arrive(*(simple_request(f"r{at}", 2 + at % 3, 3 + at % 4) for at in range(12))),
        {"num_blocks": 20},
    ),
}
"""By what they are about."""

FOR_EVERY_POLICY: Mapping[str, Situation] = {
    name: SITUATIONS[name]
    for name in (
        "a lone request fills the cache",
        "three requests grow until one is preempted",
        "three requests grow and are swapped",
        "the host has room for one of two",
        "a forked group outgrows the cache",
        "two forked groups compete and are swapped",
        "equal prompts arrive in the same step",
        "equal prompts are merged",
        "a prompt comes again when its blocks are idle",
        "better requests arrive while others run",
        "prompts have one token",
        "many tenants compete",
    )
}
"""Situations in which other policies than the scheduler decide the most."""
