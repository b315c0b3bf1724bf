"""Served runs that were measured, of the package ``aiconfigurator-core``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_core.errors import SettingsError
from paged_plugins.lab.cost_models.measured.tables import damaged

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
