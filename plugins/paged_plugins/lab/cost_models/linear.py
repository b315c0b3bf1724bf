"""Component ``linear``: a weighted sum of the work in a step."""

from __future__ import annotations

from paged_plugins.lab.cost_model import CostModel, CostModelParts, StepWork
from paged_plugins.lab.cost_models.settings import LinearSettings


class LinearCost(CostModel):
    """``seconds = fixed + per_prefill_token * prefill_tokens + ...``, one weight for each part.

    Vidur (Agrawal et al., MLSys 2024) and others predict steps from the same parts.

    Raises:
        SettingsError: the file of weights cannot be read, or holds something else.
    """

    def __init__(self, options: LinearSettings, parts: CostModelParts, /) -> None:
        self._weights = options

    def seconds(self, work: StepWork, /) -> float:
        weights = self._weights
        return (
            weights.fixed
            + weights.per_prefill_token * work.prefill_tokens
            + weights.per_prefill_pair * work.prefill_pairs
            + weights.per_prefill_context * work.prefill_context
            + weights.per_decode_sequence * work.decode_sequences
            + weights.per_context_token * work.decode_context
            + weights.per_sampled_row * work.sampled_rows
            + weights.per_copied_block * work.copied_blocks
            + weights.per_swapped_block * work.swapped_blocks
        )
