"""Components that fail every run."""

from __future__ import annotations

import os
from typing import Any, Literal, NoReturn

from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo
from paged_core.plugins.component import Component, ComponentSettings
from paged_policies.evictors.lru import LruEvictor


class DeadlySettings(ComponentSettings):
    """Options of :func:`die`."""

    name: Literal["deadly"] = "deadly"


def die(options: Any, parts: Any, /) -> NoReturn:
    """End the process, as the kernel does when memory is short."""
    os._exit(9)


class FaultySettings(ComponentSettings):
    """Options of :class:`FaultyEvictor`."""

    name: Literal["faulty"] = "faulty"


class FaultyEvictor(LruEvictor):
    """Raises when it is given a block."""

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        raise ValueError("planted")


FAULTY = Component("evictor", FaultySettings, "unit.study_faults:FaultyEvictor")
DEADLY = Component("victim", DeadlySettings, "unit.study_faults:die")
