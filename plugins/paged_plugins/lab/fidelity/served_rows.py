"""Served runs that were measured (of the package ``aiconfigurator-core``), and the settings under
which each is simulated."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paged_core.errors import SettingsError
from paged_core.settings.documents import read_text
from paged_plugins.lab.cost_models.measured.tables import damaged, published_models

_FILE = "systems/silicon_sample.csv"
_NUMBERS = (
    *("isl", "osl", "batch_size", "tp_size", "pp_size", "attention_dp_size"),
    *("moe_tp_size", "moe_ep_size", "silicon_ttft_ms", "silicon_tpot_ms"),
)
_TEXTS = (
    *("id", "silicon_data_source", "backend", "backend_version", "model_path", "system", "mode"),
    *("gemm_quant_mode", "moe_quant_mode"),
)
_WEIGHTS = {
    **{"": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"},
    **{"nvfp4": "fp4", "int4_wo": "int4"},
}
_PUBLISHED_AS = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
"""Models of which the package has the ``config.json`` under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """A run of a server under a number of clients, each of which asks again when it is answered."""

    id: str
    engine: str
    version: str
    model: str
    """Name on the hub."""
    system: str
    weights: str
    """As the row names them, ``fp8`` say."""
    is_public: bool
    """True: of the public benchmark InferenceMAX; False: of those of AIConfigurator itself."""
    isl: int
    osl: int
    clients: int
    tensor_parallel: int
    expert_parallel: int
    ttft_ms: float
    tpot_ms: float
    refusal: str | None
    """Why it cannot be simulated, if that follows from the row alone."""
    quantized: Mapping[str, str]
    """Modes of products and experts, as the package names them."""

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Engine, model, system and weights."""
        return self.engine, self.model, self.system, self.weights

    @property
    def server(self) -> tuple[Any, ...]:
        """Rows of one server differ by their loads, and when they were served."""
        quantized = tuple(self.quantized.values())
        return *self.group, self.tensor_parallel, self.expert_parallel, quantized

    @property
    def load(self) -> tuple[Any, ...]:
        """Rows of one load differ only by how they were served."""
        return self.engine, self.model, self.isl, self.osl, self.clients


def read_rows(folder: Path) -> list[ServedRow]:
    """Return all served runs of the package, in its order.

    Raises:
        SettingsError: the file is damaged, or has another schema.
    """
    path = folder / _FILE
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise damaged(path, f"it cannot be read ({error})") from None
    known = lines[0] if lines else {}
    missing = [name for name in (*_TEXTS, *_NUMBERS) if name not in known]
    if missing:
        raise damaged(path, f"it has no column {', '.join(missing)}, so it has another schema")
    try:
        return [_row(line) for line in lines]
    except (ValueError, TypeError) as error:
        raise damaged(path, f"a number in it cannot be read ({error})") from None


def _row(line: Mapping[str, str]) -> ServedRow:
    number = {name: float(line[name] or 0) for name in _NUMBERS}
    if not (number["silicon_ttft_ms"] > 0 and number["silicon_tpot_ms"] > 0):
        raise ValueError(f"{line['id']}: a time is not above 0")
    degree = max(1, int(number["tp_size"]))
    experts = max(1, int(number["moe_tp_size"])), max(1, int(number["moe_ep_size"]))
    source = line["silicon_data_source"]
    return ServedRow(
        id=line["id"],
        engine=line["backend"],
        version=line["backend_version"],
        model=line["model_path"],
        system=line["system"],
        weights=_WEIGHTS.get(line["gemm_quant_mode"], line["gemm_quant_mode"]),
        is_public="gap-analysis" not in source,
        isl=int(number["isl"]),
        osl=int(number["osl"]),
        clients=int(number["batch_size"]),
        tensor_parallel=degree,
        expert_parallel=experts[1],
        ttft_ms=number["silicon_ttft_ms"],
        tpot_ms=number["silicon_tpot_ms"],
        refusal=_refusal(line, number, degree, experts),
        quantized={"gemm": line["gemm_quant_mode"], "moe": line["moe_quant_mode"]},
    )


def _refusal(
    line: Mapping[str, str], number: Mapping[str, float], degree: int, experts: tuple[int, int]
) -> str | None:
    """Why no settings express a row."""
    if line["mode"] != "agg":
        return "prefill and decode on engines of their own"
    if number["batch_size"] < 1:
        return "no number of clients"
    if number["pp_size"] > 1:
        return "layers divided over GPUs (pipeline)"
    if number["attention_dp_size"] > 1:
        return "attention on replicas beside shared experts (data parallel)"
    if line["moe_quant_mode"] and experts[0] * experts[1] not in (1, degree):
        return "experts on other GPUs than attention, by the row's own numbers"
    if line["gemm_quant_mode"] not in _WEIGHTS:
        return f"weights {line['gemm_quant_mode']}"
    return None


class Serving(NamedTuple):
    """Options of a server, and what a benchmark asks of it."""

    scheduler: Mapping[str, Any]
    is_asynchronous: bool
    cached: str
    """Type of cached keys and values."""
    shortest: float
    """Lengths are drawn evenly from this share of the written ones up to these."""
    is_fused: bool
    """True: sums over GPUs also norm."""
    memory_share: float


def serving(row: ServedRow) -> Serving:
    """Return how a row was served: what the scripts of the public benchmark give, else the
    engine's defaults.

    The scheduler of vLLM is ``token_budget``. Those of TensorRT-LLM and SGLang are approximated by
    it: the first computes prompts whole, the second computes chunks of 8,192 tokens.
    """
    scheduler: dict[str, Any] = {"name": "token_budget", "max_num_seqs": 1024}
    if row.engine == "vllm":
        scheduler["max_num_batched_tokens"] = 8192 if row.is_public else 2048
        is_asynchronous = row.is_public or _release(row.version) >= (0, 14)
    elif row.engine == "trtllm":
        budget = 16_384 if row.is_public else 8192
        scheduler["max_num_batched_tokens"] = max(budget, row.isl)
        scheduler["chunked_prefill"] = False
        is_asynchronous = True
    else:
        scheduler["max_num_batched_tokens"] = 8192
        is_asynchronous = True
    scheduler["max_num_seqs"] = max(scheduler["max_num_seqs"], row.clients)
    is_listed = row.is_public and "Llama-3.1-70B" in row.model  # as the scripts for these say
    has_short_cache = is_listed and row.system != "h100_sxm"
    if row.engine == "vllm" and row.system == "b200_sxm" and "gpt-oss" in row.model:
        has_short_cache = bool(row.version)  # not in the first scripts, whose rows name none
    is_minimax = "MiniMax" in row.model and row.weights == "fp8" and row.is_public
    has_more = is_minimax and row.system != "h100_sxm"
    if has_more and row.system != "h200_sxm" and row.version != "0.17.0":
        scheduler["max_num_batched_tokens"] = 2 * row.isl
        has_short_cache, has_more = True, False
    return Serving(
        scheduler,
        is_asynchronous,
        "fp8" if has_short_cache else "bfloat16",
        0.8 if row.is_public else 1.0,
        is_listed and row.engine == "vllm" and row.system == "b200_sxm",
        0.95 if has_more else 0.9,
    )


def engine_values(row: ServedRow, cost_model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the settings under which a row is simulated."""
    served = serving(row)
    return {
        "executor": "simulated",
        "cost_model": cost_model,
        "scheduler": served.scheduler,
        "block_allocator": "uncached",  # no prompt shares content with another
        "async_scheduling": served.is_asynchronous,
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
        "fused_all_reduce": served.is_fused and row.tensor_parallel > 1,
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


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdigit, parts)) else ()


def chosen_rows(
    rows: list[ServedRow], system: str | None, model: str | None, engine: str | None
) -> list[ServedRow]:
    """Return the rows of a system, of models whose name has a part, and of an engine.

    Raises:
        SettingsError: there are none; it names what there is.
    """
    asked = {"engine": engine, "system": system, "model": model}
    for name, wanted in asked.items():
        if wanted is None:
            continue
        known = sorted({getattr(row, name) for row in rows})
        rows = [row for row in rows if _fits(getattr(row, name), wanted, name)]
        if not rows:
            raise SettingsError(
                f"--{name}: no run of {wanted!r:.80} was measured; there are {', '.join(known)}"
            )
    return rows


def _fits(value: str, wanted: str, name: str) -> bool:
    return wanted.lower() in value.lower() if name == "model" else value == wanted
