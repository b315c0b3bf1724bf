"""Engines on the windows of one text, the first of them the base of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paged_core.llm import LLM
from paged_plugins.bench.quality_engines import SIDE_BY_SIDE
from paged_plugins.bench.quality_scores import score
from paged_plugins.bench.quality_tally import Tally
from paged_plugins.bench.quality_text import Window
from paged_plugins.progress import Advance

_MAX_LOGITS = 1 << 26
"""Held at once of an engine, beside as many of the base: 256 MiB."""


def compare_predictions(
    base: LLM, others: Mapping[str, LLM], windows: Sequence[Window], advance: Advance
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures of the base, and those of each other engine beside it.

    A few windows at a time pass through all engines, so that no more logits are held than theirs.

    Args:
        advance: called with the windows that an engine has served.

    Raises:
        EngineError: a window failed.
    """
    own, tallies = Tally(), {name: Tally() for name in others}
    for group in _groups(base, windows):
        expected = score(base, group)
        advance(len(group))
        for scores in expected:
            own.add(scores, scores)
        for name, llm in others.items():
            for scores, wanted in zip(score(llm, group), expected, strict=True):
                tallies[name].add(scores, wanted)
            advance(len(group))
    rows = [{"name": name} | tally.figures_beside(own) for name, tally in tallies.items()]
    return own.figures(), rows


def _groups(llm: LLM, windows: Sequence[Window]) -> Iterator[Sequence[Window]]:
    """Yield windows to be served side by side."""
    num_logits = len(windows[0].decoded) * (llm.engine.capacity.vocab_size or 1)
    size = max(1, min(SIDE_BY_SIDE, _MAX_LOGITS // num_logits))
    for start in range(0, len(windows), size):
        yield windows[start : start + size]
