"""A conversation always to the same replica."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.lab.router import ReplicaLoad, Router, RouterParts


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

    def __init__(self, options: SessionSettings, parts: RouterParts, /) -> None:
        ring = sorted(
            (_place(f"{number}.{point}"), number)
            for number in range(parts.num_replicas)
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
