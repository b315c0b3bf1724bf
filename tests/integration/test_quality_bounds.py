"""Each format of weights and cache keeps the predictions of the demo model within its bounds.

The base computes in float32, so what is bounded is the error of the format itself. The bounds are
about twice what was measured, over every instruction set and without kernels.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paged_backends.quantization import groupwise
from paged_core.cli import main
from paged_core.settings import EngineSettings
from paged_plugins.bench.quality_variants import default_variants
from paged_core.registry import Registry

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Format:
    """Settings, and the largest figures that they may lead to."""

    settings: dict[str, Any]
    perplexity_change: float
    """Relative, upwards or downwards."""
    logit_difference_mean: float
    logit_difference_max: float
    divergence_mean: float

    def exceeded(self, row: dict[str, Any]) -> list[str]:
        """Return the figures that are beyond the bounds, none if all is well."""
        change = abs(row["perplexity_ratio"] - 1)
        found = {"perplexity_change": change, **row}
        return [
            f"{row['name']}: {key} {found[key]} > {getattr(self, key)}"
            for key in (
                "perplexity_change",
                "logit_difference_mean",
                "logit_difference_max",
                "divergence_mean",
            )
            if not found[key] <= getattr(self, key)
        ]


def weights(quantization: str, group_size: int = 32, **others: Any) -> dict[str, Any]:
    options = {"quantization": quantization, "group_size": group_size, **others}
    return {"runner": {"name": "native", **options}}


FORMATS = {
    "bfloat16": Format({"dtype": "bfloat16"}, 0, 0, 0, 0),
    "int8": Format(weights("int8"), 0, 0, 0, 0),
    "int8, 128": Format(weights("int8", 128), 0, 0, 0, 0),
    "int8, no kernels": Format(weights("int8", kernels="off"), 0, 0, 0, 0),
    "int4": Format(weights("int4"), 0, 0, 0, 0),
    "int4, 64": Format(weights("int4", 64), 0, 0, 0, 0),
    "int4, 128": Format(weights("int4", 128), 0, 0, 0, 0),
    "int4, no kernels": Format(weights("int4", kernels="off"), 0, 0, 0, 0),
    "fp8_e4m3 cache": Format({"kv_cache_dtype": "fp8_e4m3"}, 0, 0, 0, 0),
}


def measured(capfd: Capture, names: list[str]) -> list[str]:
    """Return what exceeds its bounds."""
    argv = ["--threads", "1", "--dtype", "float32", "--window", "128", "--limit", "508", "--json"]
    for name in names:
        argv += ["--variant", f"{name}={json.dumps(FORMATS[name].settings)}"]
    assert main(["bench", "quality", *argv], {"PATH": ""}) == 0
    rows = json.loads(capfd.readouterr().out)["variants"]
    assert [row["name"] for row in rows] == names
    print(*rows, sep="\n")
    return [problem for row in rows for problem in FORMATS[row["name"]].exceeded(row)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are quantised in every test, not found in the user's cache."""
    monkeypatch.setattr("paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path)


def test_every_format_keeps_to_its_bounds(capfd: Capture) -> None:
    assert measured(capfd, list(FORMATS)) == []
