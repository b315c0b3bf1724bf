"""The figures of a stage in a few lines, for the end of a script's output.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def figures(result: Any) -> Iterator[str]:
    """Yield a line for each figure of a benchmark's result; nothing for other results."""
    for part in result if isinstance(result, list) else [result]:
        if isinstance(part, dict):
            yield from _rows(part)
            yield from _steps(part)
            yield from _arms(part)


def _rows(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures of attention."""
    for one in part.get("refused", ()):
        yield f"  {one['component']} {one['heads']}: {one['reason'][:110]}"
    for row in part.get("rows", ()):
        heads = f"{row['num_heads']}:{row['num_kv_heads']}:{row['head_dim']}"
        line = f"  {row['component']:19} {row['batch']:11} {heads:9}"
        if "error" in row:
            yield f"{line} {row['error'][:110]}"
            continue
        captured, copied = row["us_per_layer_captured"], row["share_of_copy"]
        line += f" {row['us_per_layer']:10.1f} us"
        line += f", captured {captured:9.1f}" if captured else " " * 20
        if copied is not None:
            line += f" {copied:7.1%} of copy {row['share_of_matmul']:7.1%} of matmul"
        yield line


def _steps(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures of decoding, or of a workload."""
    if "ms_per_step" in part:
        line = f"  {part['batch_size']} sequences: {part['ms_per_step']} ms per step"
        if "ratio" in part:
            line += f", {part['ratio']} of the time that its bytes need"
        if part["gpu_idle_share"] is not None:
            line += f", GPU idle {part['gpu_idle_share']:.1%}"
        if part.get("gpu_idle_share_unprofiled") is not None:
            line += f", {part['gpu_idle_share_unprofiled']:.1%} without the profiler"
        yield line
    elif "elapsed_s" in part:
        yield f"  {part['workload']}: {part['output_tokens_per_s']} output tokens/s"


def _arms(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures of a comparison."""
    for arm in part.get("arms", ()):
        rates = [
            run["measures"]["throughput_tokens_per_s"]
            for run in part["runs"]
            if run["arm"] == arm["arm"]
        ]
        told = arm["failed"] or f"{sum(rates) / len(rates):.1f} output tokens/s"
        yield f"  {arm['arm']}: {told}"
