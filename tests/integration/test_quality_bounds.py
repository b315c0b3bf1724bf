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
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.bench.quality_command import default_variants

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]


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


@dataclass(frozen=True)
class Format:
    """Settings, and the bounds of what they do."""

    settings: Mapping[str, Any]
    bounds: Bounds


def weights(quantization: str, group_size: int = 32, **options: Any) -> dict[str, Any]:
    """Settings of runner ``native``."""
    table = {"quantization": quantization, "group_size": group_size, **options}
    return {"runner": {"name": "native", **table}}


INT8, INT4 = Bounds(0.005, 0.06, 0.6, 4e-4), Bounds(0.04, 0.6, 6, 0.04)
BFLOAT16 = {"dtype": "bfloat16"}
FORMATS = {
    "bfloat16": Format(BFLOAT16, Bounds(0.002, 0.03, 0.4, 2e-4)),
    "int8": Format(weights("int8"), INT8),
    "int8, 128": Format(weights("int8", 128), Bounds(0.005, 0.08, 1.2, 2e-3)),
    "int8, no kernels": Format(weights("int8", kernels="off"), Bounds(0.003, 0.035, 0.3, 1.5e-4)),
    "int8 beside bfloat16": Format(weights("int8") | BFLOAT16, INT8),
    "int4": Format(weights("int4"), INT4),
    "int4, 64": Format(weights("int4", 64), Bounds(0.04, 0.65, 7, 0.05)),
    "int4, 128": Format(weights("int4", 128), Bounds(0.04, 0.7, 7, 0.05)),
    "int4, no kernels": Format(weights("int4", kernels="off"), INT4),
    "int4 beside bfloat16": Format(weights("int4") | BFLOAT16, INT4),
    "int8 cache": Format({"kv_cache_dtype": "int8"}, Bounds(0.003, 0.05, 0.6, 3e-4)),
    "fp8_e4m3 cache": Format({"kv_cache_dtype": "fp8_e4m3"}, Bounds(0.004, 0.15, 3, 5e-3)),
}


def exceeded(capfd: Capture, formats: Mapping[str, Format]) -> list[str]:
    """Return what is beyond its bounds."""
    argv = ["--threads", "1", "--dtype", "float32", "--window", "128", "--limit", "508", "--json"]
    for name, one in formats.items():
        argv += ["--variant", f"{name}={json.dumps(one.settings)}"]
    assert main(["bench", "quality", *argv], {"PATH": ""}) == 0
    rows = json.loads(capfd.readouterr().out)["variants"]
    assert [row["name"] for row in rows] == list(formats)
    return [problem for row in rows for problem in formats[row["name"]].bounds.exceeded(row)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are quantised in every test, and not found in the user's cache."""
    monkeypatch.setattr("paged_backends.quantization.disk_cache.cache_dir", lambda: tmp_path)


DEFAULT = ("int8", "int4", "int8 cache", "fp8_e4m3 cache")
"""Formats that ``bench quality`` measures where nothing is named."""


def test_every_default_variant_keeps_to_its_bounds(capfd: Capture) -> None:
    assert exceeded(capfd, {name: FORMATS[name] for name in DEFAULT}) == []


@pytest.mark.long
def test_every_format_keeps_to_its_bounds(capfd: Capture) -> None:
    others = {name: one for name, one in FORMATS.items() if name not in DEFAULT}
    assert exceeded(capfd, others) == []


def test_every_default_variant_has_bounds() -> None:
    variants = default_variants(EngineSettings(runner="native"), Registry.discover())
    assert sorted(variant.name for variant in variants) == sorted(DEFAULT)
