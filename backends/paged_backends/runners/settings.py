"""Options of the runners; light, because every listing imports them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paged_core.component import ComponentSettings


class TransformersSettings(ComponentSettings):
    """Any decoder-only model of the transformers library, through its attention interface."""

    name: Literal["transformers"] = "transformers"


class NativeSettings(ComponentSettings):
    """The families of models that most people run, in a decoder of our own."""

    name: Literal["native"] = "native"
    weights: Literal["checkpoint", "random"] = Field(
        default="checkpoint",
        description="`random`: made up from the seed, to measure what a bare config.json costs.",
    )
    kernels: Literal[
        "auto",
        "avx512_amx",
        "avx512_bf16",
        "avx512_bf16_mixed",
        "avx512",
        "avx2",
        "portable",
        "avx512_amx_emulated",
        "portable_amx_emulated",
        "off",
    ] = Field(
        default="auto",
        description="our own for CPUs, by instruction set; off: plain PyTorch, as elsewhere",
    )
