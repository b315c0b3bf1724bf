"""The routers that are shipped: which replica of a simulated cluster serves a request."""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import cycle
from random import Random
from typing import Literal

from pydantic import Field

from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.routing.router import ReplicaLoad, Router, RouterContext


class RoundRobinSettings(ComponentSettings):
    """Options of :class:`RoundRobinRouter`."""

    name: Literal["round_robin"] = "round_robin"


class RoundRobinRouter(Router):
    """One request after the other to the next replica, whatever its load."""

    def __init__(self, options: RoundRobinSettings, context: RouterContext, /) -> None:
        self._turns = cycle(range(context.num_replicas))

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return next(self._turns)


class LeastLoadedSettings(ComponentSettings):
    """Options of :class:`LeastLoadedRouter`."""

    name: Literal["least_loaded"] = "least_loaded"


class LeastLoadedRouter(Router):
    """Fewest requests that have not ended, then fewest tokens; equal replicas take turns."""

    def __init__(self, options: LeastLoadedSettings, context: RouterContext, /) -> None:
        self._choice = LeastLoaded(context.num_replicas)

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return self._choice.among(range(len(replicas)), replicas)


class LeastLoaded:
    """Chooses the least loaded of some replicas, among equals the one after the last choice."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._next = 0
        """Where the search for an equal begins."""

    def among(self, numbers: Iterable[int], replicas: Sequence[ReplicaLoad]) -> int:
        """Return one of ``numbers``, which are not empty. O(n), with one look at each replica."""
        numbers = list(numbers)
        counts = [replicas[number].num_requests for number in numbers]
        fewest = min(counts)
        equal = [number for number, count in zip(numbers, counts, strict=True) if count == fewest]
        if len(equal) > 1:
            tokens = [replicas[number].num_tokens for number in equal]
            fewest = min(tokens)
            equal = [number for number, count in zip(equal, tokens, strict=True) if count == fewest]
        start = self._next
        chosen = next((number for number in equal if number >= start), equal[0])
        self._next = (chosen + 1) % self._num_replicas
        return chosen


class PowerOfTwoSettings(ComponentSettings):
    """Options of :class:`PowerOfTwoRouter`."""

    name: Literal["power_of_two"] = "power_of_two"


class PowerOfTwoRouter(Router):
    """Looks at two replicas only, and is nearly as balanced as a router that looks at all.

    Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (IEEE Transactions on
    Parallel and Distributed Systems 12(10), 2001). Fewer requests, then fewer tokens.
    """

    def __init__(self, options: PowerOfTwoSettings, context: RouterContext, /) -> None:
        self._random = Random(context.seed)

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        if len(replicas) == 1:
            return 0
        first = self._random.randrange(len(replicas))
        second = (first + self._random.randrange(1, len(replicas))) % len(replicas)
        one, other = replicas[first], replicas[second]
        loads = (one.num_requests, one.num_tokens), (other.num_requests, other.num_tokens)
        return second if loads[1] < loads[0] else first


def content_keys(request: Request, block_size: int) -> list[int]:
    """Return a number for each full block of the prompt: equal ones mean equal tokens up to there.

    They are hashes: a collision may change where a request goes, and nothing else.
    """
    prompt, key = request.prompt, hash(request.cache_salt)
    keys = []
    for end in range(block_size, len(prompt) + 1, block_size):
        key = hash((key, prompt[end - block_size : end]))
        keys.append(key)
    return keys


class KnownPrefixes:
    """Remembers blocks for each replica, and forgets those that were sent least recently.

    A block is sent no later than what follows it in a prompt, and forgotten no earlier: a replica
    that knows a block knows the whole prefix before it.

    Args:
        max_blocks: remembered for each replica.
    """

    def __init__(self, num_replicas: int, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._recent: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_replicas)]
        """For each replica, the keys of its blocks, the least recently sent first."""
        self._holders: dict[int, set[int]] = {}
        """For each key, the replicas that know it."""

    def __len__(self) -> int:
        """Blocks remembered, over all replicas."""
        return sum(map(len, self._recent))

    def longest(self, keys: Sequence[int]) -> tuple[int, list[int]]:
        """Return how many leading blocks any replica knows at most, and the replicas that do."""
        depth = 0
        while depth < len(keys) and keys[depth] in self._holders:
            depth += 1
        return depth, sorted(self._holders[keys[depth - 1]]) if depth else []

    def note(self, replica: int, keys: Sequence[int]) -> None:
        """A prompt of these blocks is sent to a replica."""
        recent = self._recent[replica]
        for key in reversed(keys[: self._max_blocks]):  # the first becomes the most recent
            if key in recent:
                recent.move_to_end(key)
            else:
                recent[key] = None
                self._holders.setdefault(key, set()).add(replica)
        while len(recent) > self._max_blocks:
            self._forget(replica, recent.popitem(last=False)[0])

    def _forget(self, replica: int, key: int) -> None:
        holders = self._holders[key]
        holders.remove(replica)
        if not holders:
            del self._holders[key]


class PrefixAffinitySettings(ComponentSettings):
    """Options of :class:`PrefixAffinityRouter`."""

    name: Literal["prefix_affinity"] = "prefix_affinity"
    least_share: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="share of the prompt that a replica must know to be preferred",
    )
    most_ahead: int = Field(
        default=64,
        ge=0,
        description="balance by load alone while one replica has more requests than the least "
        "loaded one by this number and by most_ratio",
    )
    most_ratio: float = Field(default=1.5, ge=1, description="see most_ahead")
    max_blocks: int | None = Field(
        default=None,
        ge=1,
        description="blocks remembered for each replica; null: as many as its cache has",
    )


class PrefixAffinityRouter(Router):
    """Longest known prefix, balanced against load.

    While the load is balanced, a request goes to the replica to which the longest prefix of its
    prompt was sent, if that is ``least_share`` of it or more; else to the least loaded. Of several
    that know equally much, to the least loaded. The rule and its defaults are those of the
    cache-aware router of SGLang (Zheng et al., NeurIPS 2024; SGLang v0.4 and its gateway), which
    sends what is known nowhere to the replica with the smallest tree; to the least loaded instead
    in Preble (Srivatsa et al., ICLR 2025), and here. What a replica knows is what was sent to it:
    blocks of prompts by their content, the least recently sent forgotten first.
    """

    def __init__(self, options: PrefixAffinitySettings, context: RouterContext, /) -> None:
        self._options = options
        self._block_size = context.block_size
        self._known = KnownPrefixes(context.num_replicas, options.max_blocks or context.num_blocks)
        self._least_loaded = LeastLoaded(context.num_replicas)

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        keys = content_keys(request, self._block_size)
        candidates = self._candidates(request, keys, replicas)
        chosen = self._least_loaded.among(candidates or range(len(replicas)), replicas)
        self._known.note(chosen, keys)
        return chosen

    def _candidates(
        self, request: Request, keys: Sequence[int], replicas: Sequence[ReplicaLoad]
    ) -> Sequence[int]:
        """Return the replicas that know the longest part of the prompt, if that is to decide."""
        depth, holders = self._known.longest(keys)
        if depth * self._block_size < self._options.least_share * len(request.prompt):
            return ()
        return () if self._is_unbalanced(replicas) else holders

    def _is_unbalanced(self, replicas: Sequence[ReplicaLoad]) -> bool:
        counts = [replica.num_requests for replica in replicas]
        most, least = max(counts), min(counts)
        return most - least > self._options.most_ahead and most > self._options.most_ratio * least


class SessionSettings(ComponentSettings):
    """Options of :class:`SessionRouter`."""

    name: Literal["session"] = "session"
    num_points: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="points of each replica on the ring: more of them spread sessions more evenly",
    )


class SessionRouter(Router):
    """Consistent hashing: with one replica more, few sessions move, and all of them to that one.

    Karger, Lehman, Leighton, Panigrahy, Levine and Lewin, "Consistent Hashing and Random Trees"
    (STOC 1997). Replicas and sessions are points of one ring; a session belongs to the next replica
    on it. A request without a session is one of its own. It holds nothing per session.
    """

    def __init__(self, options: SessionSettings, context: RouterContext, /) -> None:
        ring = sorted(
            (_place(f"{number}.{point}"), number)
            for number in range(context.num_replicas)
            for point in range(options.num_points)
        )
        self._places = [place for place, _ in ring]
        self._owners = [number for _, number in ring]

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        after = bisect(self._places, _place(session or request.id))
        return self._owners[after % len(self._owners)]


def _place(name: str) -> int:
    """Return the place of a name on the ring, the same in every process."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
