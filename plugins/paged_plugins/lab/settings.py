"""Options of the executor ``simulated`` and of the cost models; every listing imports them, and
nothing heavy with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from paged_core.plugins.component import ComponentSettings


class LinearSettings(ComponentSettings):
    """A weighted sum of the work in a step; the defaults are an 8B model's on an A100, roughly."""

    name: Literal["linear"] = "linear"
    file: Path | None = Field(
        default=None, description="what `paged-core calibrate` wrote; options given beside it win"
    )
    fixed: PositiveFloat = Field(default=0.012, description="seconds of every step")
    per_prefill_token: NonNegativeFloat = Field(
        default=1e-4, description="seconds per token of a prompt"
    )
    per_prefill_sequence: NonNegativeFloat = Field(
        default=0.0, description="seconds per sequence whose prompt is computed"
    )
    per_prefill_pair: NonNegativeFloat = Field(
        default=3e-9, description="seconds per query and key in prefill attention"
    )
    per_prefill_context: NonNegativeFloat = Field(
        default=0.0, description="seconds per cached token that a chunk of a prompt reads"
    )
    per_decode_sequence: NonNegativeFloat = Field(
        default=5e-5, description="seconds per sequence that decodes"
    )
    per_context_token: NonNegativeFloat = Field(
        default=8e-8, description="seconds per cached token that a decoding sequence reads"
    )
    per_sampled_row: NonNegativeFloat = Field(default=0.0, description="seconds per row of logits")
    wake: NonNegativeFloat = Field(default=0.0, description="seconds of a step after idle time")
    per_copied_block: NonNegativeFloat = Field(
        default=3e-6, description="seconds per block copied on the device"
    )
    per_swapped_block: NonNegativeFloat = Field(
        default=1e-4, description="seconds per block swapped out or in"
    )


class RooflineSettings(ComponentSettings):
    """The time that a device's bandwidth and arithmetic allow for a model's shape."""

    name: Literal["roofline"] = "roofline"
    file: Path | None = Field(
        default=None, description="what `paged-core calibrate` wrote; options given beside it win"
    )
    device: str = Field(
        default="a100-80g",
        description="a40, a100-40g, a100-80g, h100, h200, l4, rtx-4070-laptop",
    )
    model: str = Field(
        default="llama-3.1-8b",
        description="opt-13b, llama-2-7b, llama-2-13b, llama-3.1-8b, llama-3.1-70b, qwen3-0.6b, "
        "qwen3-8b, mistral-7b, smollm-135m, a name on the hub, or a folder with a config.json",
    )
    tensor_parallel: PositiveInt = Field(default=1, description="devices that share each layer")
    compute_efficiency: float = Field(
        default=0.6, gt=0, le=1, description="share of the device's FLOP/s that is reached"
    )
    memory_efficiency: float = Field(
        default=0.8, gt=0, le=1, description="share of its memory bandwidth that is reached"
    )
    memory_share: float = Field(
        default=0.9, gt=0, le=1, description="share of its memory for weights and cache"
    )
    copy_latency: NonNegativeFloat = Field(
        default=1e-5, description="seconds of every transfer to or from the host beside its bytes"
    )
    step_overhead: NonNegativeFloat = Field(
        default=0.001, description="seconds of every step beside the model"
    )


class MeasuredSettings(ComponentSettings):
    """The kernels of a GPU engine, by times that were measured (package aiconfigurator-core)."""

    name: Literal["measured"] = "measured"
    file: Path | None = Field(
        default=None, description="what `paged-core calibrate` wrote; options given beside it win"
    )
    system: str = Field(
        default="h100_sxm", description="kind of GPU; `paged-core doctor` lists those measured"
    )
    engine: Literal["vllm", "sglang", "trtllm"] = Field(
        default="vllm", description="engine whose kernels were measured"
    )
    model: str = Field(
        default="Qwen/Qwen3-32B",
        description="a name that roofline knows, a name on the hub that the package knows, "
        "a config.json, or a folder with one",
    )
    tensor_parallel: PositiveInt = Field(
        default=1, description="GPUs that share each layer; experts are cut along their width"
    )
    expert_parallel: PositiveInt = Field(
        default=1, description="groups of these GPUs that the experts of a layer are dealt out to"
    )
    weights: Literal[
        "bfloat16", "fp8", "fp8_block", "fp4", "fp4_experts", "int4", "mxfp4", "mxfp4_mxfp8"
    ] = Field(
        default="bfloat16",
        description="fp4_experts, mxfp4: of the experts alone; mxfp4_mxfp8: and their inputs",
    )
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8"] = Field(
        default="auto", description="auto: as the engine's setting says"
    )
    memory_share: float = Field(
        default=0.9, gt=0, le=1, description="share of a GPU's memory for weights and cache"
    )
    fused_all_reduce: bool = Field(
        default=False,
        description="sums over GPUs also norm, by TensorRT-LLM's kernel (vLLM's fusion pass)",
    )
    tiled_experts: bool = Field(
        default=False,
        description="experts by DeepGEMM's grouped products, as vLLM 0.11.1 to 0.14 on Hopper; "
        "needs fp8_block",
    )
    host_per_step: NonNegativeFloat = Field(
        default=1.8e-3, description="seconds of the host for every step"
    )
    host_per_sequence: NonNegativeFloat = Field(
        default=4e-5, description="seconds of the host for every sequence of a step"
    )
    expert_distribution: Literal["balanced", "power_law_1.01", "power_law_1.2"] = Field(
        default="power_law_1.2", description="how evenly tokens choose experts"
    )
    tables: Path | None = Field(
        default=None,
        description="folder of the package (null: where it is installed), or of CSV files of Vidur",
    )


SIMULATED = "simulated"
"""The executor without a model, on the virtual clock."""


class SimulatedSettings(ComponentSettings):
    """Runs no model: every step takes the time that ``cost_model`` predicts, on a virtual clock."""

    name: Literal["simulated"] = "simulated"
