"""Options of the executors; imports nothing heavy, because every listing imports it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from paged_core.plugins.chosen_component import ChosenComponent
from paged_core.plugins.component import ComponentSettings
from paged_core.settings.types import memory_size

_MAX_SECONDS = 1e6
"""Polls count milliseconds in 32 bits."""
_MAX_RANKS = 64


def _whole_bytes(value: object) -> object:
    """Read a size of memory, 0 included, that is no fraction."""
    try:
        size = 0 if value in (0, "0") else memory_size(value)
    except ValueError:
        size = None  # its message advises fractions, too
    if isinstance(value, bool) or not isinstance(size, int):
        raise ValueError("give bytes, such as 128MiB, or 0")
    return size


class LocalSettings(ComponentSettings):
    """Runs the model in this process."""

    name: Literal["local"] = "local"
    populate_ahead: Annotated[
        int, BeforeValidator(_whole_bytes, json_schema_input_type=int | str)
    ] = Field(
        default=128 << 20,
        ge=0,
        description="on a CPU under Linux: memory of the cache that a thread has the system "
        "provide ahead of the blocks in use, such as 128MiB; 0: none, steps wait for it",
    )
    grammar_timeout: float = Field(
        default=10.0,
        gt=0,
        le=_MAX_SECONDS,
        description="seconds that the form of an output may take to be compiled",
    )


class MemorySettings(ComponentSettings):
    """Runs no model: the cache holds token ids, and sequences are read back by their tables."""

    name: Literal["memory"] = "memory"
    vocab_size: int = Field(
        default=1000, gt=0, description="Sampled token ids are below it; any id is served."
    )


class WorkersOptions(ComponentSettings):
    """Runs another executor's steps in other processes, the ranks of a model."""

    inner: ChosenComponent = Field(
        ChosenComponent(name="local"),
        description="the executor to run there: a name, or a table of the name and options",
    )
    ranks: int = Field(1, ge=1, le=_MAX_RANKS, description="processes that share the model")
    placement: Literal["process", "ray"] = Field(
        "process",
        description="process: on this machine; ray: actors of a Ray cluster, on any machines",
    )
    heartbeat_timeout: float = Field(
        30.0,
        gt=0,
        le=_MAX_SECONDS,
        description="seconds in which the process must answer a heartbeat; it is killed if not",
    )
    step_timeout: float | None = Field(
        600.0,
        gt=0,
        le=_MAX_SECONDS,
        description="seconds that a step may take; null: as long as it likes",
    )
    communicator_timeout: float = Field(
        600.0,
        gt=0,
        le=_MAX_SECONDS,
        description="seconds that a rank waits for the others, while they load the model too",
    )
    pin_cores: bool | Literal["auto"] = Field(
        "auto",
        description="on a CPU, placement process: each rank has cores of its own; auto: unless "
        "`threads` is set, as it is where several engines share the cores",
    )


class WorkersSettings(WorkersOptions):
    """Runs another executor's steps in one process or several, each with its share of a model."""

    name: Literal["workers"] = "workers"


class ProcessSettings(WorkersOptions):
    """Executor ``workers`` by another name: one process."""

    name: Literal["process"] = "process"


class TensorParallelSettings(WorkersOptions):
    """Executor ``workers`` by another name: two ranks."""

    name: Literal["tensor_parallel"] = "tensor_parallel"
    ranks: int = Field(2, ge=1, le=_MAX_RANKS, description="processes that share the model")
