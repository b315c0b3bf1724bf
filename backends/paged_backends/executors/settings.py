"""Options of the executors; imports nothing heavy, because every listing imports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings


class LocalSettings(ComponentSettings):
    """Runs the model in this process."""

    name: Literal["local"] = "local"
    accelerator: Literal["auto", "emulated"] = Field(
        default="auto",
        description="auto: the device; emulated: on a CPU, steps are launched, captured and "
        "collected as on a GPU, to find mistakes in their order",
    )


class MemorySettings(ComponentSettings):
    """Runs no model: the cache holds token ids, and sequences are read back by their tables."""

    name: Literal["memory"] = "memory"
    vocab_size: int = Field(
        default=1000, gt=0, description="Drawn token ids are below it; any id is served."
    )
