"""Small ablations for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

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
