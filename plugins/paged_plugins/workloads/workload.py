"""Workloads: requests in the order in which they arrive, listed, drawn, or read from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice, repeat
from operator import itemgetter
from typing import Protocol

from paged_core.errors import SettingsError
from paged_plugins.workloads.amount import Choice, distinct, stream
from paged_plugins.workloads.arrivals import Arrivals
from paged_plugins.workloads.request import MOST_FAMILY, ContentIds, WorkloadRequest
from paged_plugins.workloads.request_class import (
    Conversation,
    LengthDraw,
    Lengths,
    MixedClass,
    Prefixes,
    RequestClass,
    Tree,
)
from paged_plugins.workloads.traces.files import NO_REQUEST, TokenCount, TraceError
from paged_plugins.workloads.traces.trace import Trace

_ASPECTS = ("prompt", "output", "n", "deadline", "turns", "think", "tenant", "priority")


class Workload(Protocol):
    """Something that draws requests. Equal seeds draw equal requests, in every process."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the requests that follow no other, by their time ``at``, one at a time: memory
        does not grow with the length of the workload."""


@dataclass(frozen=True, slots=True)
class ListedWorkload:
    """The same requests for every seed."""

    name: str
    requests: Sequence[WorkloadRequest]
    """By their time ``at``."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield them; ``seed`` changes nothing."""
        return iter(self.requests)


@dataclass(frozen=True, slots=True)
class DrawnWorkload:
    """Requests of several classes."""

    name: str
    num_requests: int
    """In all; the last family is cut to it."""
    arrivals: Arrivals
    """Arrivals of the classes that have no process of their own."""
    classes: Sequence[MixedClass]
    count_tokens: TokenCount
    """For lengths of a trace that has texts."""

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the first requests, each with those that follow it."""
        content = ContentIds()
        draws = [
            FamilyDraw(
                each, seed, f"class {number}", content, each.lengths.sampler(self.count_tokens)
            )
            for number, each in enumerate(self.classes)
        ]
        left = self.num_requests
        for number, (time, place) in enumerate(self._arrivals(seed)):
            request, size = draws[place].draw(str(number), time, left)
            yield request
            left -= size
            if not left:
                return

    def _arrivals(self, seed: int) -> Iterator[tuple[float, int]]:
        """Yield the time of each first request, and the number of its class."""
        shares = {
            place: each.weight for place, each in enumerate(self.classes) if each.arrivals is None
        }
        processes = [_of_class(seed, place, each) for place, each in enumerate(self.classes)]
        if shares:
            processes.append(self._shared_arrivals(seed, Choice(shares)))
        return merge(*processes, key=itemgetter(0))

    def _shared_arrivals(self, seed: int, choice: Choice[int]) -> Iterator[tuple[float, int]]:
        classes = stream(seed, "class")
        for time in self.arrivals.times(stream(seed, "arrivals")):
            yield time, choice(classes.random())


def _of_class(seed: int, place: int, mixed: MixedClass) -> Iterator[tuple[float, int]]:
    if mixed.arrivals is not None:
        times = mixed.arrivals.times(stream(seed, f"class {place} arrivals"))
        for time in islice(times, mixed.first):
            yield time, place


@dataclass(slots=True)
class _Turn:
    """One request of a family, before it is linked with its followers."""

    follows: int
    """Place of the one that it follows, which is earlier; its own, for the first."""
    num_new: int
    output: int
    n: int
    think: float
    deadline: float | None


class FamilyDraw:
    """Draws families of one class of requests.

    Every aspect has a stream of random numbers of its own, and each family takes as many numbers
    from it whatever the others say, so that a change of one aspect leaves the others as they are.

    Args:
        aspect: begins the names of its streams.
        content: where content ids come from; shared prefixes take theirs at once.
        lengths: draws the lengths of prompts and answers.

    Raises:
        SettingsError: the shortest request, behind the longest shared prefixes, is longer than the
            longest may be.
    """

    def __init__(
        self,
        spec: RequestClass,
        seed: int,
        aspect: str,
        content: ContentIds,
        lengths: LengthDraw,
    ) -> None:
        self._spec = spec
        self._content = content
        self._lengths = lengths
        self._stream = {each: stream(seed, f"{aspect} {each}").random for each in _ASPECTS}
        self._tenant = Choice(spec.tenants)
        self._priority = Choice(spec.priorities)
        self._shared = _SharedPrefixes(spec.prefixes, seed, aspect, content)
        prompt, output = lengths(0.0, 0.0) if isinstance(spec.lengths, Lengths) else (1, 1)
        shared = self._shared.longest
        if spec.max_tokens is not None and shared + prompt + output > spec.max_tokens:
            after = f" after shared prefixes of {shared}" if shared else ""
            raise SettingsError(
                f"max_tokens {spec.max_tokens} leaves no room for a prompt of {prompt} and an "
                f"answer of {output} tokens{after}, and there are no shorter ones; raise it or "
                "shorten them"
            )

    def draw(self, name: str, at: float, most: int) -> tuple[WorkloadRequest, int]:
        """Return a first request with its followers, and how many they are.

        Args:
            name: of the first one, and of their session; the others are ``NAME.1``, ``NAME.2``.
            at: its arrival.
            most: requests, at most.
        """
        shared = self._shared.draw()
        turns = self._fitting(self._turns(), sum(map(len, shared)))[:most]
        tenant = self._tenant(self._stream["tenant"]())
        priority = self._priority(self._stream["priority"]())
        salt = {"none": None, "tenant": tenant, "session": name}[self._spec.cache_salt]
        own = [self._content.take(turn.num_new) for turn in turns]
        followers: list[list[WorkloadRequest]] = [[] for _ in turns]
        for place in range(len(turns) - 1, -1, -1):
            turn = turns[place]
            request = WorkloadRequest(
                id=f"{name}.{place}" if place else name,
                at=turn.think if place else at,
                prompt=(own[place],) if place else (*shared, own[0]),
                output=turn.output,
                n=turn.n,
                priority=priority,
                tenant=tenant,
                session=name,
                deadline=turn.deadline,
                cache_salt=salt,
                followers=tuple(reversed(followers[place])),
            )
            followers[turn.follows].append(request)
        return request, len(turns)

    def _turns(self) -> list[_Turn]:
        spec, stream = self._spec, self._stream
        structure = spec.prefixes.conversation or spec.prefixes.tree
        num_turns, branching, think = 1, 1, None
        if isinstance(structure, Conversation):
            num_turns = min(structure.turns.whole(stream["turns"]()), MOST_FAMILY)
            think = structure.think
        elif isinstance(structure, Tree):
            num_turns, branching, think = structure.size, structure.branching, structure.think
        return [
            _Turn(
                max(0, place - 1) // branching,
                *self._lengths(stream["prompt"](), stream["output"]()),
                n=spec.n.whole(stream["n"]()),
                think=think.quantile(stream["think"]()) if think else 0.0,
                deadline=spec.deadline.quantile(stream["deadline"]()) if spec.deadline else None,
            )
            for place in range(num_turns)
        ]

    def _fitting(self, turns: list[_Turn], num_shared: int) -> list[_Turn]:
        """Leave out turns that would be too long, with what follows them; shorten a first one."""
        most = self._spec.max_tokens
        if most is None:
            return turns
        first = turns[0]
        first.num_new = min(first.num_new, most - num_shared - 1)
        first.output = min(first.output, most - num_shared - first.num_new)
        lengths = {0: num_shared + first.num_new + first.output}
        places = {0: 0}  # by place among all turns, the place among those that are kept
        for place, turn in enumerate(turns[1:], 1):
            if turn.follows in places:
                length = lengths[turn.follows] + turn.num_new + turn.output
                if length <= most:
                    lengths[place] = length
                    places[place] = len(places)
        return [replace(turns[place], follows=places[turns[place].follows]) for place in places]


class _SharedPrefixes:
    """Prefixes that prompts of one class share, and the one that each prompt begins with."""

    def __init__(self, spec: Prefixes, seed: int, aspect: str, content: ContentIds) -> None:
        lengths = stream(seed, f"{aspect} prefix lengths").random
        weights: dict[range, float] = {}
        for entry in spec.system:
            popularity = [(rank + 1) ** -entry.exponent for rank in range(entry.count)]
            whole = sum(popularity)
            for each in popularity:
                text = content.take(entry.tokens.whole(lengths()))
                weights[text] = entry.weight * each / whole
        self._system = Choice(weights) if weights else None
        self._few_shot = spec.few_shot
        self._pool: Sequence[range] = ()
        if spec.few_shot:
            tokens = spec.few_shot.tokens
            self._pool = [content.take(tokens.whole(lengths())) for _ in range(spec.few_shot.pool)]
        self._systems = stream(seed, f"{aspect} system").random
        self._examples = stream(seed, f"{aspect} examples")

        num_examples = spec.few_shot.examples if spec.few_shot else 0
        examples = sorted(map(len, self._pool))[len(self._pool) - num_examples :]
        self.longest = max(map(len, weights), default=0) + sum(examples)
        """Tokens of the longest beginning that prompts may have in common."""

    def draw(self) -> tuple[range, ...]:
        """Return what one prompt begins with."""
        return tuple(self._parts())

    def _parts(self) -> Iterator[range]:
        if self._system:
            yield self._system(self._systems())
        if self._few_shot:
            yield from distinct(self._examples, self._pool, self._few_shot.examples)


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """The requests of a trace, at its times or at those of another process."""

    name: str
    trace: Trace
    num_requests: int | None
    """At most; the last family is cut to it. ``None``: all."""
    arrivals: Arrivals | None
    """``None``: as the trace has them, whatever the seed."""
    count_tokens: TokenCount

    def draw(self, seed: int, /) -> Iterator[WorkloadRequest]:
        """Yield the first requests, each with those that follow it.

        Raises:
            TraceError: a line of the file is broken, or there is no request in it.
        """
        request = None
        for request, time in zip(self._cut(), self._times(seed), strict=False):
            yield replace(request, at=request.at * self.trace.scale if time is None else time)
        if request is None:
            raise TraceError(self.trace.file, None, NO_REQUEST)

    def _cut(self) -> Iterator[WorkloadRequest]:
        left = self.num_requests
        for request in self.trace.requests(self.count_tokens):
            if left is None:
                yield request
                continue
            if left <= 0:
                return
            size = sum(1 for _ in request.family())
            yield request if size <= left else request.first(left)
            left -= size

    def _times(self, seed: int) -> Iterator[float | None]:
        if self.arrivals is None:
            return repeat(None)
        return self.arrivals.times(stream(seed, "arrivals"))
