"""Small ablations for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from paged_core.cli import main

TABLES = ("runs.json", "ablation.yaml")
WORKLOAD = {
    "name": "small",
    "lengths": {"prompt": 40, "output": 12},
    "arrivals": {"poisson": {"rate": 50}},
    "requests": 8,
}
ABLATION = {
    "base": {"profile": "vllm-v1", "num_blocks": 64},
    "axes": {
        "scheduler": ["token_budget", "prefill_or_decode"],
        "victim": ["newest", "fewest_computed"],
    },
    "workloads": [WORKLOAD],
    "seeds": 2,
    "slo": {"ttft_ms": 500, "tpot_ms": 50},
}


def write(folder: Path, **changes: Any) -> Path:
    """Write the small ablation to a file, with other values for some of its keys."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(ABLATION | changes, sort_keys=False), "utf-8")
    return path


def tables(folder: Path) -> dict[str, bytes]:
    """Return what does not depend on when and where an ablation ran."""
    kept = {name: (folder / name).read_bytes() for name in TABLES}
    return kept | {path.name: path.read_bytes() for path in sorted((folder / "runs").iterdir())}


def run(path: Path, output: Path, *options: str) -> int:
    """Run an ablation into a folder; return the exit status."""
    return main(["lab", "run", str(path), "--output", str(output), "--workers", "1", *options], {})


def leave_partials(folder: Path, pid: int) -> list[Path]:
    """Leave what a process that was killed leaves of the files that it was writing."""
    record = next((folder / "runs").glob("*.gz"))
    left = [folder / f"{name}.{pid}.partial" for name in ("runs.json", "manifest.json")]
    left.append(record.with_name(f"{record.name}.{pid}.partial"))
    for path in left:
        path.write_bytes(b"half of it")
    return left
