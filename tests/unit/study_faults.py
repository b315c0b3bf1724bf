"""A victim that takes its process down."""

from __future__ import annotations

import os
from typing import Any, Literal, NoReturn

from paged_core.plugins.component import Component, ComponentSettings


class DeadlySettings(ComponentSettings):
    """Options of :func:`die`."""

    name: Literal["deadly"] = "deadly"


def die(options: Any, parts: Any, /) -> NoReturn:
    """End the process, as the kernel does when memory is short."""
    os._exit(9)


DEADLY = Component("victim", DeadlySettings, "unit.study_faults:die")
