"""Each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Literal

from paged_core.component import ComponentSettings
from paged_core.request import Request
from paged_plugins.lab.router import ReplicaLoad, Router, RouterParts


class RoundRobinSettings(ComponentSettings):
    """Options of :class:`RoundRobinRouter`."""

    name: Literal["round_robin"] = "round_robin"


class RoundRobinRouter(Router):
    """One request after the other to the next replica, whatever its load."""

    def __init__(self, options: RoundRobinSettings, parts: RouterParts, /) -> None:
        self._turns = cycle(range(parts.num_replicas))

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        return next(self._turns)
