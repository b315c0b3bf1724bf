"""A package of kernel times as ``aiconfigurator-core`` has them, with times that are known."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SYSTEM = "x1_sxm"
SHEET = {
    "gpu": {"mem_capacity": 2**33, "mem_bw": 1e12},
    "node": {"intra_node_bw": 1e11, "pcie_bw": 1e10},
}
MODEL = {
    **{"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 256, "head_dim": 64},
    **{"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"vocab_size": 512, "max_position_embeddings": 4096},
}
MIXTURE = MODEL | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
WIDTHS = (128, 256, 512, 1024)
ROWS = (1, 16, 256, 4096)


def gemm_ms(m: int, n: int, k: int) -> float:
    return 0.01 * (m * n * k) ** 0.25


def prefill_ms(batch: int, length: int) -> float:
    return 0.01 + 1e-7 * batch * length**2


def decode_ms(batch: int, cached: int) -> float:
    return 0.01 + 1e-3 * batch + 1e-6 * batch * cached


def reduce_ms(size: int) -> float:
    return 1e-3 * size**0.25


def experts_ms(tokens: int) -> float:
    return 0.05 * tokens**0.5


def write_package(folder: Path) -> Path:
    """Write a package of one system, whose engine ``vllm`` was measured in two releases."""
    systems = folder / "systems"
    systems.mkdir(parents=True)
    (systems / f"{SYSTEM}.yaml").write_text(yaml.safe_dump(SHEET))
    models = folder / "model_configs"
    models.mkdir()
    (models / "some--small_config.json").write_text(json.dumps(MODEL))
    (models / "some--mixture_config.json").write_text(json.dumps(MIXTURE))
    for release, factor in (("0.9.0", 100.0), ("0.10.0", 1.0)):
        write(
            folder,
            "gemm",
            "gemm",
            release,
            ({**row, "latency": row["latency"] * factor} for row in gemms()),
        )
    write(folder, "attention", "context_attention", "0.10.0", attentions("isl"))
    write(folder, "attention", "generation_attention", "0.10.0", attentions("step"))
    sums = ({"num_gpus": 2, "message_size": s, "latency": reduce_ms(s)} for s in (512, 2**25))
    write(folder, "comm", "custom_allreduce", "0.10.0", sums)
    write(folder, "moe", "moe", "0.10.0", mixtures())
    return folder


def write(
    folder: Path,
    kind: str,
    name: str,
    release: str,
    rows: Iterator[dict[str, Any]],
    engine: str = "vllm",
) -> Path:
    """Write a table."""
    path = folder / "systems/data" / SYSTEM / kind / engine / release / f"{name}_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def gemms() -> Iterator[dict[str, Any]]:
    for m, n, k in product(ROWS, WIDTHS, WIDTHS):
        yield {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": gemm_ms(m, n, k)}


def attentions(axis: str) -> Iterator[dict[str, Any]]:
    lengths = (1, 64, 1024, 4096) if axis == "isl" else (1, 63, 1023, 65535)
    for batch, length, heads in product((1, 16, 256), lengths, ((4, 2), (2, 1))):
        latency = prefill_ms(batch, length) if axis == "isl" else decode_ms(batch, length)
        row = {"batch_size": batch, "isl": 1, "step": 0, "head_dim": 64, "window_size": 0}
        row |= {axis: length, "num_heads": heads[0], "num_key_value_heads": heads[1]}
        yield row | {"kv_cache_dtype": "bfloat16", "latency": latency}


def mixtures() -> Iterator[dict[str, Any]]:
    shape = {"hidden_size": 256, "inter_size": 128, "topk": 2, "num_experts": 8, "moe_tp_size": 1}
    for groups, tokens in product((1, 2), (1, 4096)):
        row = {"moe_dtype": "bfloat16", "num_tokens": tokens, "moe_ep_size": groups, **shape}
        yield row | {"distribution": "power_law_1.2", "latency": groups * experts_ms(tokens)}


SERVED: dict[str, Any] = {
    **{"id": "one", "silicon_data_source": "source_file=2026.csv", "backend": "vllm"},
    **{"backend_version": "0.12.0", "model_path": "some/small", "system": SYSTEM, "mode": "agg"},
    **{"isl": 256, "osl": 32, "gemm_quant_mode": "", "moe_quant_mode": "", "batch_size": 4},
    **{"tp_size": 1, "pp_size": 1, "attention_dp_size": "", "moe_tp_size": "", "moe_ep_size": ""},
    **{"silicon_ttft_ms": 20.0, "silicon_tpot_ms": 1.0},
}


def write_served(package: Path, *changes: dict[str, Any]) -> Path:
    """Write the served runs of a package, each with its changes to the first."""
    path = package / "systems/silicon_sample.csv"
    rows = [{**SERVED, "id": f"run {place}", **each} for place, each in enumerate(changes)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, SERVED)
        writer.writeheader()
        writer.writerows(rows)
    return path
