"""Requests to serve in a test, and Hypothesis strategies that draw difficult ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
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
    prompt = "".join(map(str, request.prompt)) if set(request.prompt) <= {0, 1} else f"of {length}"
    own = Request(id=request.id, prompt=request.prompt)
    asked = [*_differences(request.sampling, SamplingParams()), *_differences(request, own)]
    return f"{request.id}(prompt {prompt}{''.join(f', {each}' for each in asked)})"


def _differences(record: Any, usual: Any) -> Iterator[str]:
    """Fields that two records have different values of."""
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name != "sampling" and value != getattr(usual, field.name):
            yield f"{field.name}={value!r}"


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


@st.composite
def requests(draw: st.DrawFn, name: str = "r", number: int = 0) -> Request:
    """One request over a tiny alphabet, so that prefixes are often shared."""
    kind = draw(st.sampled_from(["plain"] * 6 + ["best_of", "beams"]))
    n = draw(st.sampled_from([1, 1, 1, 2, 3]))
    max_tokens = draw(st.integers(1, 12))
    if kind == "beams":
        sampling = SamplingParams(n=n, beam_width=3, max_tokens=max_tokens)
    elif kind == "best_of":
        sampling = SamplingParams(n=n, best_of=3, temperature=1.0, max_tokens=max_tokens)
    else:
        temperature = draw(st.sampled_from([0.0, 1.0]))
        sampling = SamplingParams(n=n, temperature=temperature, max_tokens=max_tokens)
    return Request(
        id=f"{name}{number}",
        prompt=tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=16))),
        sampling=sampling,
        priority=draw(st.integers(0, 2)),
        arrival=float(number),
        cache_salt=draw(st.sampled_from([None, None, "salt"])),
        tenant=draw(st.sampled_from(["", "a", "b"])),
        deadline=draw(st.sampled_from([None, 5.0, 50.0])),
    )


@st.composite
def workloads(draw: st.DrawFn, max_requests: int = 7, max_aborts: int = 2) -> Workload:
    """A few requests that arrive within some steps of each other; some are aborted."""
    count = draw(st.integers(1, max_requests))
    arrivals = [(draw(st.integers(0, 8)), draw(requests("r", number))) for number in range(count)]
    ids = [request.id for _, request in arrivals]
    aborts = draw(
        st.lists(st.tuples(st.integers(0, 12), st.sampled_from(ids)), max_size=max_aborts)
    )
    return Workload(tuple(arrivals), tuple(aborts))
