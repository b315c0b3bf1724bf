"""Component ``linear``: a weighted sum of the work in a step, with weights that were measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter, mul

import structlog

from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_plugins.lab.cost_models.weights_file import with_file
from paged_plugins.lab.settings import LinearSettings

_log = structlog.get_logger()

PARTS: Mapping[str, str] = {
    "per_prefill_token": "prefill_tokens",
    "per_prefill_sequence": "prefill_sequences",
    "per_prefill_pair": "prefill_pairs",
    "per_prefill_context": "prefill_context",
    "per_decode_sequence": "decode_sequences",
    "per_context_token": "decode_context",
    "per_sampled_row": "sampled_rows",
    "wake": "after_idle",
    "per_copied_block": "copied_blocks",
    "per_swapped_block": "swapped_blocks",
}
"""Weights beside ``fixed``, and the part of the work that each belongs to."""


def largest(works: Iterable[StepWork]) -> dict[str, float]:
    """Return the most of each part of the work that some steps had, for a file of weights."""
    parts = [part for part in PARTS.values() if part != "after_idle"]
    most = zip(parts, map(max, zip(*map(attrgetter(*parts), works), strict=True)), strict=True)
    return {part: float(each) for part, each in most if each}


class LinearCost(CostModel):
    """``seconds = fixed + per_prefill_token * prefill_tokens + ...``, one weight for each part.

    With ``file``, weights are those that were measured; options that are set beside it win, and
    weights that neither gives are 0. The file also says how much the measured engine holds, and the
    largest steps that were measured: those with more are extrapolated, which the log says once.

    Raises:
        SettingsError: the file cannot be read, or names other weights.
    """

    def __init__(self, options: LinearSettings, context: CostModelContext, /) -> None:
        options, self._file = with_file(options, *PARTS)
        self._fixed = options.fixed
        self._weights = tuple(getattr(options, name) for name in PARTS)
        self._context = attrgetter(*PARTS.values())
        self._is_told = False

    def seconds(self, work: StepWork, /) -> float:
        return sum(map(mul, self._weights, self._context(work)), self._fixed)

    def is_extrapolated(self, work: StepWork, /) -> bool:
        is_beyond = self._file.is_beyond(work)
        if is_beyond and not self._is_told:
            self._is_told = True
            most = {f"most_measured_{part}": each for part, each in self._file.largest.items()}
            _log.warning("times_extrapolated", max_model_len=self._file.max_model_len, **most)
        return is_beyond

    def num_blocks(self, block_size: int, /) -> int | None:
        return self._file.num_blocks(block_size)

    @property
    def max_model_len(self) -> int | None:
        return self._file.max_model_len
