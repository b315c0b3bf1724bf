"""Each format of weights and cache keeps the predictions of the demo model within its bounds.

The base computes in float32. The bounds are about twice what was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main

pytestmark = pytest.mark.heavy


@dataclass(frozen=True)
class Bounds:
    """The largest figures of ``bench quality`` that a format may lead to."""

    perplexity_change: float
    """Relative, upwards or downwards."""
    logit_difference_mean: float
    logit_difference_max: float
    divergence_mean: float

    def exceeded(self, row: Mapping[str, Any]) -> list[str]:
        """Return what is beyond them in a row of the command; nothing, if all is well."""
        found = {**row, "perplexity_change": abs(row["perplexity_ratio"] - 1)}
        return [
            f"{row['name']}: {key} is {found[key]}, more than {most}"
            for key, most in asdict(self).items()
            if not found[key] <= most
        ]


FORMATS: dict[str, tuple[dict[str, Any], Bounds]] = {
    "int8": (
        {"runner": {"name": "native", "quantization": "int8"}},
        Bounds(0.005, 0.06, 0.6, 4e-4),
    ),
    "int4": (
        {"runner": {"name": "native", "quantization": "int4"}},
        Bounds(0.04, 0.6, 6, 0.04),
    ),
    "int8 cache": ({"kv_cache_dtype": "int8"}, Bounds(0.003, 0.05, 0.6, 3e-4)),
    "fp8_e4m3 cache": ({"kv_cache_dtype": "fp8_e4m3"}, Bounds(0.004, 0.15, 3, 5e-3)),
}
"""Settings, and the bounds of what they do."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are quantised in every test, and not found in the user's cache."""
    monkeypatch.setattr("paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path)


def test_every_default_variant_keeps_to_its_bounds(capfd: pytest.CaptureFixture[str]) -> None:
    """The formats that ``bench quality`` measures where nothing is named."""
    argv = ["--threads", "1", "--dtype", "float32", "--window", "128", "--limit", "508", "--json"]
    for name, (settings, _) in FORMATS.items():
        argv += ["--variant", f"{name}={json.dumps(settings)}"]
    assert main(["bench", "quality", *argv], {"PATH": ""}) == 0
    rows = json.loads(capfd.readouterr().out)["variants"]
    assert [row["name"] for row in rows] == list(FORMATS)
    assert [one for row in rows for one in FORMATS[row["name"]][1].exceeded(row)] == []
