"""Component ``linear``: a weighted sum of the work in a step."""

from __future__ import annotations

from pydantic import ValidationError

from paged_core.errors import SettingsError
from paged_plugins.lab.cost_model import CostModel, CostModelParts, StepWork
from paged_plugins.lab.cost_models.settings import LinearSettings
from paged_plugins.lab.cost_models.weights_file import WeightsFile, read_weights


class LinearCost(CostModel):
    """``seconds = fixed + per_prefill_token * prefill_tokens + ...``, one weight for each part.

    With ``file``, weights are those that were measured; options that are set beside it win, and
    weights that neither gives are 0. The file also says how much the measured engine holds.

    Raises:
        SettingsError: the file cannot be read, or names other weights.
    """

    def __init__(self, options: LinearSettings, parts: CostModelParts, /) -> None:
        self._weights, self._file = options, WeightsFile(weights={})
        if options.file is not None:
            self._file = read_weights(options.file)
            self._weights = _measured(options, self._file)

    def seconds(self, work: StepWork, /) -> float:
        weights = self._weights
        return (
            weights.fixed
            + weights.per_prefill_token * work.prefill_tokens
            + weights.per_prefill_sequence * work.prefill_sequences
            + weights.per_prefill_pair * work.prefill_pairs
            + weights.per_prefill_context * work.prefill_context
            + weights.per_decode_sequence * work.decode_sequences
            + weights.per_context_token * work.decode_context
            + weights.per_sampled_row * work.sampled_rows
            + weights.wake * work.after_idle
            + weights.per_copied_block * work.copied_blocks
            + weights.per_swapped_block * work.swapped_blocks
        )

    def num_blocks(self, block_size: int, /) -> int | None:
        num_tokens = self._file.num_tokens
        return None if num_tokens is None else max(1, num_tokens // block_size)

    @property
    def max_model_len(self) -> int | None:
        return self._file.max_model_len


def _measured(options: LinearSettings, file: WeightsFile) -> LinearSettings:
    """Return the weights of the file, under those that were set."""
    names = {name for name in LinearSettings.model_fields if name not in {"name", "file"}}
    unknown = sorted(set(file.weights) - names)
    if unknown:
        raise SettingsError(
            f"cost_model.file: {options.file} has the weight {unknown[0]!r:.80}; those of `linear` "
            f"are {', '.join(sorted(names))}"
        )
    chosen = {name: getattr(options, name) for name in options.model_fields_set}
    try:
        return LinearSettings(**{**dict.fromkeys(names - {"fixed"}, 0.0), **file.weights, **chosen})
    except ValidationError:  # the weight that may not be 0
        raise SettingsError(
            f"cost_model.file: {options.file} has fixed={file.weights['fixed']}; it must be above 0"
        ) from None
