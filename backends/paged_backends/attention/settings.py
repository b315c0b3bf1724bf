"""Options of the attention backends; light, because every listing imports them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paged_backends.kernels.cpu import InstructionSetName
from paged_core.plugins.chosen_component import ChosenComponent
from paged_core.plugins.component import ComponentSettings


class TorchSettings(ComponentSettings):
    """Attention in plain PyTorch, on any device: the reference for every other backend."""

    name: Literal["torch"] = "torch"


class CpuSettings(ComponentSettings):
    """Our own kernels for CPUs, compiled on first use."""

    name: Literal["cpu"] = "cpu"
    instruction_set: Literal["auto", InstructionSetName] = Field(
        "auto",
        description="auto: the best that processor and compiler have; naming one that the "
        "processor lacks is an error",
    )


class TritonSettings(ComponentSettings):
    """Our own kernels in Triton, for CUDA devices."""

    name: Literal["triton"] = "triton"


class CudaSettings(ComponentSettings):
    """Our own CUDA C++ kernels, compiled on first use by nvcc or NVRTC."""

    name: Literal["cuda"] = "cuda"
    prefill_tile: Literal["mma", "wgmma"] = Field(
        "mma",
        description="what multiplies in prefill: mma, single warps; wgmma, warpgroups, on GPUs of "
        "compute capability 9.0, for caches of 16 bits and head dimensions of 64 and 128 (else "
        "mma, with a warning); not yet tried on a GPU",
    )


class FlashAttnSettings(ComponentSettings):
    """Flash attention over the paged cache, by the best of several packages."""

    name: Literal["flash_attn"] = "flash_attn"
    provider: Literal["auto", "fa3", "fa2", "fa4", "torch"] = Field(
        "auto",
        description="auto: the first that serves a layer, of flash-attn 3, flash-attn 2, "
        "flash-attn-4 and PyTorch's own",
    )


class FlashInferSettings(ComponentSettings):
    """Attention by the package FlashInfer."""

    name: Literal["flashinfer"] = "flashinfer"


class HybridSettings(ComponentSettings):
    """Two attention components over one cache: one for prefill, one for decoding."""

    name: Literal["hybrid"] = "hybrid"
    prefill: ChosenComponent = Field(
        ChosenComponent(name="flash_attn"),
        description="attention of sequences with several new tokens: a name, or a table of the "
        "name and options",
    )
    decode: ChosenComponent = Field(
        ChosenComponent(name="triton"),
        description="attention of sequences with one new token, likewise",
    )
