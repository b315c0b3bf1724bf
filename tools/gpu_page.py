"""Makes a page of what a session on a GPU measured: a section of docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PUBLISHED = (
    "nano-vLLM publishes 1,434 tokens of output per second for such requests, and 1,362 of vLLM, "
    "with Qwen3-0.6B on an RTX 4070 for laptops."
)


def page(record: Mapping[str, Any]) -> str:
    """Return the page of a record; what was not measured is left out of it."""
    stages = record["stages"]
    kinds: dict[str, list[dict[str, Any]]] = {"throughput": [], "decode": [], "attention": []}
    for stage in stages:
        kind = stage["name"].partition(" ")[0]
        if kind in kinds and stage.get("result"):
            found = stage["result"]
            kinds[kind] += found if isinstance(found, list) else found.get("rows", [found])
    passed = [stage for stage in stages if stage["status"] == "passed"]
    lines = [
        f"### {_machine(stages) or record['on']}, {record['started'][:10]}",
        "",
        f"`make {record['name']}`, {record['seconds']:.0f} s: {len(passed)} of {len(stages)} "
        "stages passed.",
        *_throughput(kinds["throughput"]),
        *_decode(kinds["decode"]),
        *_attention(kinds["attention"]),
        *_rest(stages),
    ]
    return "\n".join(lines) + "\n"


def _machine(stages: Sequence[Mapping[str, Any]]) -> str:
    for stage in stages:
        found = stage.get("result")
        machine = found.get("machine", {}) if isinstance(found, dict) else {}
        if "gpu" in machine:
            return f"{machine['gpu']}, PyTorch {machine['torch']}, CUDA {machine['cuda']}"
    return ""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table, after an empty one; none if it has no rows."""
    if rows:
        yield from ("", f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |")
        for row in rows:
            yield f"| {' | '.join('-' if value is None else str(value) for value in row)} |"


def _throughput(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = ["attention", "requests", "tokens in, out", "temperature", "seconds"]
    columns += ["output tokens/s", "total tokens/s", "TTFT p50 ms", "TPOT p50 ms", "graphs"]
    yield from table(
        columns,
        [
            (
                *(row["components"]["attention"], row["requests"]),
                *(f"{row['input_tokens']}, {row['output_tokens']}", row["temperature"]),
                *(row["elapsed_s"], row["output_tokens_per_s"], row["total_tokens_per_s"]),
                *(next(iter(row[key].values())) for key in ("ttft_ms", "tpot_ms")),
                row["graphs"],
            )
            for row in rows
        ],
    )
    if rows:
        yield from ("", PUBLISHED)


def _decode(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = ["attention", "sequences x tokens", "ms per step", "of the time of its bytes"]
    yield from table(
        [*columns, "tokens/s", "GPU idle", "graphs"],
        [
            (
                *(row["components"]["attention"], f"{row['batch_size']} x {row['context']}"),
                *(row["ms_per_step"], row.get("ratio"), row["output_tokens_per_s"]),
                *(row["gpu_idle_share_unprofiled"], row["graphs"]),
            )
            for row in rows
        ],
    )


def _attention(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    columns = ["heads", "cache, blocks", "batch", "attention", "us per layer", "captured"]
    yield from table(
        [*columns, "GB/s", "of copy", "GFLOP/s", "of matmul"],
        [
            (
                f"{row['num_heads']}:{row['num_kv_heads']}:{row['head_dim']}",
                f"{row['kv_cache_dtype']}, {row['block_size']}",
                *(row["batch"], row["component"]),
                *(_rounded(row[key]) for key in ("us_per_layer", "us_per_layer_captured")),
                *(_rounded(row["bytes_per_s"], 1e-9), _rounded(row["share_of_copy"], 100, "%")),
                _rounded(row["operations_per_s"], 1e-9),
                _rounded(row["share_of_matmul"], 100, "%"),
            )
            for row in rows
            if "error" not in row
        ],
    )


def _rounded(value: float | None, factor: float = 1, unit: str = "") -> str:
    return "-" if value is None else f"{value * factor:.0f}{unit}"


def _rest(stages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what engines were compared, and which stages did not pass."""
    for stage in stages:
        if stage["name"].startswith("compare") and stage["status"] == "passed":
            yield from ("", f"{stage['name']}:", "", "```", stage["tail"].strip()[-2500:], "```")
    others = [
        (stage["name"], stage["status"], stage.get("reason", stage.get("seconds")))
        for stage in stages
        if stage["status"] != "passed"
    ]
    yield from table(["stage", "came to", "reason, or seconds"], others)
