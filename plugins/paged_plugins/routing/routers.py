"""The routers that are shipped: which of several replicas serves a request."""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import ceil
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
    """One request after the other to the replica with the next number, whatever its load.

    A replica that comes back takes its turn where it had it, so that those that stay are not asked
    more than once in between.
    """

    def __init__(self, options: RoundRobinSettings, context: RouterContext, /) -> None:
        self._numbers: list[int] = []
        """Numbers of the replicas that are there, in order."""
        self._last = -1
        """The number that was chosen last."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        insort(self._numbers, replica)

    def left(self, replica: int, /) -> None:
        self._numbers.remove(replica)

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        numbers = self._numbers if len(replicas) == len(self._numbers) else list(replicas)
        self._last = numbers[bisect(numbers, self._last) % len(numbers)]
        return self._last


class LeastLoadedSettings(ComponentSettings):
    """Options of :class:`LeastLoadedRouter`."""

    name: Literal["least_loaded"] = "least_loaded"


class LeastLoadedRouter(Router):
    """Fewest requests that have not ended, then fewest tokens, then fewest requests so far."""

    def __init__(self, options: LeastLoadedSettings, context: RouterContext, /) -> None:
        pass

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        return least_loaded(replicas.values())


def least_loaded(replicas: Iterable[ReplicaLoad]) -> int:
    """Return the number of the least loaded of some replicas: the order is :func:`load`."""
    return min(replicas, key=load).number


def load(replica: ReplicaLoad) -> tuple[int, int, int, int]:
    """Return that by which replicas are compared: equal ones take turns, as each gets one more."""
    return replica.num_requests, replica.num_tokens, replica.num_routed, replica.number


class PowerOfTwoSettings(ComponentSettings):
    """Options of :class:`PowerOfTwoRouter`."""

    name: Literal["power_of_two"] = "power_of_two"


class PowerOfTwoRouter(Router):
    """Looks at two replicas only, and is nearly as balanced as a router that looks at all.

    Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (IEEE Transactions on
    Parallel and Distributed Systems 12(10), 2001). It compares them as ``least_loaded`` does.
    """

    def __init__(self, options: PowerOfTwoSettings, context: RouterContext, /) -> None:
        self._random = Random(context.seed)
        self._numbers: list[int] = []
        """Numbers of the replicas that are there, in order."""

    def joined(self, replica: int, num_blocks: int, /) -> None:
        insort(self._numbers, replica)

    def left(self, replica: int, /) -> None:
        self._numbers.remove(replica)

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        numbers = self._numbers if len(replicas) == len(self._numbers) else list(replicas)
        if len(numbers) == 1:
            return numbers[0]
        first = self._random.randrange(len(numbers))
        second = (first + self._random.randrange(1, len(numbers))) % len(numbers)
        return least_loaded((replicas[numbers[first]], replicas[numbers[second]]))


class SessionSettings(ComponentSettings):
    """Options of :class:`SessionRouter`."""

    name: Literal["session"] = "session"
    num_points: int = Field(
        default=128,
        ge=1,
        le=4096,
        description="points of each replica on the ring: more of them spread sessions more evenly",
    )
    most_over_mean: float | None = Field(
        default=None,
        gt=1,
        description="unfinished requests of a replica over the mean, at most: what is beyond goes "
        "to the next one on the ring; null: no limit",
    )


class SessionRouter(Router):
    """Consistent hashing: only the sessions of a replica that leaves move, and they come back.

    Karger, Lehman, Leighton, Panigrahy, Levine and Lewin, "Consistent Hashing and Random Trees"
    (STOC 1997). Replicas and sessions are points of one ring; a session belongs to the next replica
    on it that takes requests. A request without a session is one of its own. It holds nothing per
    session. With a limit it is consistent hashing with bounded loads (Mirrokni, Thorup and
    Zadimoghaddam, SODA 2018).
    """

    def __init__(self, options: SessionSettings, context: RouterContext, /) -> None:
        self._num_points, self._most_over_mean = options.num_points, options.most_over_mean
        self._ring: list[tuple[int, int]] = []
        """Places, and the replicas that they belong to, in order."""
        self._is_sorted = True

    def joined(self, replica: int, num_blocks: int, /) -> None:
        self._ring += [(_place(f"{replica}.{each}"), replica) for each in range(self._num_points)]
        self._is_sorted = False

    def left(self, replica: int, /) -> None:
        self._ring = [point for point in self._ring if point[1] != replica]

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        if not self._is_sorted:
            self._ring.sort()
            self._is_sorted = True
        if self._most_over_mean is not None:
            total = 1 + sum(each.num_requests for each in replicas.values())
            most = ceil(self._most_over_mean * total / len(replicas))
            replicas = {n: each for n, each in replicas.items() if each.num_requests < most}
        ring = self._ring
        after = bisect(ring, (_place(session or request.id), -1))
        while ring[after % len(ring)][1] not in replicas:
            after += 1
        return ring[after % len(ring)][1]


def _place(name: str) -> int:
    """Return the place of a name on the ring, the same in every process."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
