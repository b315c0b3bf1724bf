"""Component ``linear``: a weighted sum of the work in a step."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter, mul

from pydantic import ValidationError

from paged_core.errors import SettingsError
from paged_plugins.lab.cost_model import CostModel, CostModelParts, StepWork
from paged_plugins.lab.cost_models.settings import LinearSettings
from paged_plugins.lab.cost_models.weights_file import WeightsFile, read_weights

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


class LinearCost(CostModel):
    """``seconds = fixed + per_prefill_token * prefill_tokens + ...``, one weight for each part.

    With ``file``, weights are those that were measured; options that are set beside it win, and
    weights that neither gives are 0. The file also says how much the measured engine holds.

    Raises:
        SettingsError: the file cannot be read, or names other weights.
    """

    def __init__(self, options: LinearSettings, parts: CostModelParts, /) -> None:
        self._file = WeightsFile(weights={})
        if options.file is not None:
            self._file = read_weights(options.file)
            options = _measured(options, self._file)
        self._fixed = options.fixed
        self._weights = tuple(getattr(options, name) for name in PARTS)
        self._parts = attrgetter(*PARTS.values())

    def seconds(self, work: StepWork, /) -> float:
        return sum(map(mul, self._weights, self._parts(work)), self._fixed)

    def num_blocks(self, block_size: int, /) -> int | None:
        num_tokens = self._file.num_tokens
        return None if num_tokens is None else max(1, num_tokens // block_size)

    @property
    def max_model_len(self) -> int | None:
        return self._file.max_model_len


def _measured(options: LinearSettings, file: WeightsFile) -> LinearSettings:
    """Return the weights of the file, under those that were set."""
    names = {"fixed", *PARTS}
    unknown = sorted(set(file.weights) - names)
    if unknown:
        raise SettingsError(
            f"cost_model.file: {options.file} has the weight {unknown[0]!r:.80}; those of `linear` "
            f"are {', '.join(sorted(names))}"
        )
    chosen = {name: getattr(options, name) for name in options.model_fields_set}
    try:
        return LinearSettings(**{**dict.fromkeys(PARTS, 0.0), **file.weights, **chosen})
    except ValidationError:  # the weight that may not be 0
        raise SettingsError(
            f"cost_model.file: {options.file} has fixed={file.weights['fixed']}; it must be above 0"
        ) from None
