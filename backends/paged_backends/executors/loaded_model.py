"""A model on its device with its cache, and the sequences that it computes.

Shapes: T tokens of a batch.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paged_backends.attention.step import StepAttention
from paged_backends.executors.accelerator import Accelerator
from paged_backends.executors.paged_cache import PagedCache
from paged_backends.executors.sequence_rows import BatchMaker, SequenceRows
from paged_core.errors import blame
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.runner import Runner
from paged_core.step import StepInput


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Model, cache and sequences between start and close."""

    accelerator: Accelerator
    runner: Runner
    backend: AttentionBackend
    cache: PagedCache
    layers: list[LayerAttention]
    rows: SequenceRows
    batches: BatchMaker

    def apply(self, step: StepInput) -> None:
        """Apply what changed since the last step, in the order that :class:`StepInput` says."""
        rows, cache = self.rows, self.cache
        rows.remove(step.removed)
        cache.swap_out(step.swap_out_sources, step.swap_out_targets)
        cache.swap_in(step.swap_in_sources, step.swap_in_targets)
        cache.copy(step.copy_sources, step.copy_targets)
        for new in step.added:
            rows.add(new)
        rows.edit(step.edit_ids, step.edit_indices, step.edit_blocks)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, attention: AttentionBatch) -> Tensor:
        """Return hidden states [T, hidden]."""
        attend = StepAttention(self.layers, self.backend.plan(attention))
        try:
            return self.runner.forward(tokens_T, positions_T, attend)
        except Exception as error:
            blame(error, "runner", self.runner)
            raise
