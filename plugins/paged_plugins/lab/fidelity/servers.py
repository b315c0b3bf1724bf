"""Servers of measured runs: the options that each was started with, and the settings under which it
is simulated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_core.settings.documents import read_text
from paged_plugins.lab.cost_models.measured.tables import damaged, published_models
from paged_plugins.lab.fidelity.served_rows import ServedRow

_PUBLISHED_AS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
"""Models of which the package has the ``config.json`` under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Options of a server, and what a benchmark asks of it; the defaults are those of most."""

    tokens: int = 8192
    """Room of a step, at least."""
    prompts: int = 0
    """A step has room for so many, ``beside`` tokens, and ``per_client`` of each client."""
    beside: int = 0
    per_client: int = 0
    chunked_prefill: bool = True
    async_scheduling: bool = True
    cached: str = "bfloat16"
    """Type of cached keys and values."""
    memory_share: float = 0.9
    fused_all_reduce: bool = False
    tiled_experts: bool = False
    shortest: float = 1.0
    """Lengths are drawn evenly from this share of the written ones up to these."""


_HOPPER, _BLACKWELL = ("h100_sxm", "h200_sxm"), ("b200_sxm", "b300_sxm")
_MINIMAX = {"model": "MiniMax", "weights": ("fp8",), "is_public": (True,)}
_SHORT = {"cached": "fp8"}
OPTIONS: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = (
    # of engines; the schedulers of TensorRT-LLM and SGLang are approximated by vLLM's
    ({"engine": ("trtllm",)}, {"prompts": 1, "chunked_prefill": False}),
    # AIConfigurator's rules for the servers that it generates, rule_plugin/benchmark/vllm.rule
    (
        {"engine": ("vllm",), "is_public": (False,)},
        {"tokens": 0, "prompts": 1, "beside": 1500, "per_client": 1},
    ),
    ({"engine": ("vllm",), "is_public": (False,), "before": (0, 14)}, {"async_scheduling": False}),
    # vLLM's DeepGemmExperts with E8M0 scales, its default on Hopper but for 8 GPUs
    (
        {"engine": ("vllm",), "system": _HOPPER, "tensor_parallel": (1, 2, 4)}
        | {"since": (0, 11, 1), "before": (0, 15)},
        {"tiled_experts": True},
    ),
    # the scripts of InferenceMAX
    ({"is_public": (True,)}, {"shortest": 0.8}),
    ({"engine": ("trtllm",), "is_public": (True,)}, {"tokens": 16_384}),
    ({"model": "Llama-3.1-70B", "is_public": (True,), "system": ("h200_sxm", "b200_sxm")}, _SHORT),
    (
        {"model": "Llama-3.1-70B", "is_public": (True,), "system": ("b200_sxm",)}
        | {"engine": ("vllm",), "tensor_parallel": (2, 4, 8)},
        {"fused_all_reduce": True},
    ),
    ({"model": "gpt-oss", "engine": ("vllm",), "system": ("b200_sxm",), "since": (0,)}, _SHORT),
    (_MINIMAX | {"system": ("h200_sxm", *_BLACKWELL)}, {"memory_share": 0.95}),
    (
        _MINIMAX | {"system": _BLACKWELL, "version": ("0.19.0", "nightly-5b8c30d62b754b57")},
        {"tokens": 0, "prompts": 2, "memory_share": 0.9} | _SHORT,
    ),
)
"""Runs, by what they have, and options of their servers; of several that say one, the last counts.

``model`` is a part of the name, ``since`` and ``before`` are releases, of all else the values are
given.
"""


def serving(row: ServedRow) -> Serving:
    """Return how a row was served, by ``OPTIONS``."""
    chosen: dict[str, Any] = {}
    for wanted, options in OPTIONS:
        if all(_has(row, name, values) for name, values in wanted.items()):
            chosen |= options
    return Serving(**chosen)


def _has(row: ServedRow, name: str, values: Any) -> bool:
    if name in ("since", "before"):
        parts = row.version.split(".")
        release = tuple(map(int, parts)) if all(map(str.isdigit, parts)) else ()
        return bool(release) and (release >= values) == (name == "since")
    if name == "model":
        return values in row.model
    return getattr(row, name) in values


def engine_values(row: ServedRow, cost_model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the settings under which a row is simulated."""
    served = serving(row)
    room = served.prompts * row.isl + served.beside + served.per_client * row.clients
    return {
        "executor": "simulated",
        "cost_model": cost_model,
        "scheduler": {
            "name": "token_budget",
            "max_num_seqs": max(1024, row.clients),
            "max_num_batched_tokens": max(served.tokens, room),
            "chunked_prefill": served.chunked_prefill,
        },
        "block_allocator": "uncached",  # no prompt shares content with another
        "async_scheduling": served.async_scheduling,
    }


def measured_options(row: ServedRow, folder: Path) -> dict[str, Any]:
    """Return the options of the cost model ``measured`` for a row."""
    weights, cached = _stored(row, folder)
    served = serving(row)
    return {
        "name": "measured",
        "system": row.system,
        "engine": row.engine,
        "model": published_name(row.model),
        "tensor_parallel": row.tensor_parallel,
        "expert_parallel": row.expert_parallel,
        "weights": weights,
        "kv_cache_dtype": cached,
        "memory_share": served.memory_share,
        "fused_all_reduce": served.fused_all_reduce,
        "tiled_experts": served.tiled_experts and weights == "fp8_block",
        "tables": str(folder),
    }


def published_name(model: str) -> str:
    """Return the name under which the package has a model's ``config.json``."""
    return _PUBLISHED_AS.get(model, model)


def _stored(row: ServedRow, folder: Path) -> tuple[str, str]:
    """The form of weights, and the type of cached keys and values: where the checkpoint's own files
    say more than the row, that counts."""
    weights, cached = row.weights, serving(row).cached
    path = published_models(folder).get(published_name(row.model))
    stored = (path and _document(path).get("quantization_config")) or {}
    if stored.get("quant_method") == "mxfp4":
        is_blackwell = row.engine != "sglang" and row.system[0] in "bg"
        return "mxfp4_mxfp8" if is_blackwell else "mxfp4", cached
    if weights == "fp8" and stored.get("weight_block_size"):
        return "fp8_block", cached
    name = f"nvidia--{row.model.rpartition('/')[2]}-NVFP4_hf_quant_config.json"
    path = folder / "model_configs" / name
    if weights == "fp4" and path.is_file():
        stored = _document(path).get("quantization") or {}
        if any("self_attn" in each for each in stored.get("exclude_modules", ())):
            weights = "fp4_experts"
        if stored.get("kv_cache_quant_algo") == "FP8":
            cached = "fp8"
    return weights, cached


def _document(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise damaged(path, f"it cannot be read ({error})") from None
