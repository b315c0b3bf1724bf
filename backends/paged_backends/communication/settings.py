"""Options of the communicators; imports nothing heavy, because every listing imports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paged_core.plugins.component import ComponentSettings


class ShmSettings(ComponentSettings):
    """Shared memory: on one machine, tensors on the CPU."""

    name: Literal["shm"] = "shm"
    buffer_size: int = Field(
        default=1 << 20,
        ge=1 << 10,
        le=1 << 30,
        multiple_of=64,
        description="bytes that each rank exchanges at once; of larger tensors, one piece after "
        "another. Each rank has two buffers",
    )


class GlooSettings(ComponentSettings):
    """PyTorch's gloo: over TCP, on one machine or several."""

    name: Literal["gloo"] = "gloo"


class NcclSettings(ComponentSettings):
    """NVIDIA's NCCL: between GPUs, a rank on each."""

    name: Literal["nccl"] = "nccl"
    sums: Literal["ordered", "nccl"] = Field(
        default="ordered",
        description="ordered: all ranks gather the tensors and add them in float32, in the order "
        "of the ranks; nccl: its own sums, in an order of its choice and in the tensor's dtype",
    )
