"""An executor without a model or a cache; every sequence samples the same token."""

from __future__ import annotations

from typing import Literal

from paged_core.component import Component, ComponentSettings
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.step import StepInput, StepResult

_TOKEN = 1


class NullSettings(ComponentSettings):
    """Options of :class:`NullExecutor`."""

    name: Literal["null"] = "null"


class NullExecutor(Executor):
    """Does almost no work, so that the time of a step is the engine's own.

    ``settings.num_blocks`` and ``settings.max_model_len`` must be given.
    """

    def __init__(self, options: NullSettings, parts: ExecutorParts, /) -> None:
        self._settings = parts.settings
        self._needs_host_blocks = parts.needs_host_blocks
        self._pending: dict[SeqId, int] = {}
        """Prompt tokens still to be computed before the first token is sampled."""
        self.num_sequences = 0
        """Sequences scheduled in all steps so far."""
        self.num_tokens = 0
        """Tokens computed in all steps so far."""

    def start(self) -> Capacity:
        num_blocks, max_model_len = self._settings.num_blocks, self._settings.max_model_len
        assert num_blocks is not None
        assert max_model_len is not None
        host = num_blocks if self._needs_host_blocks else 0
        return Capacity(num_blocks=num_blocks, num_host_blocks=host, max_model_len=max_model_len)

    def submit(self, step: StepInput, /) -> StepInput:
        return step

    def collect(self, handle: StepInput, /) -> StepResult:
        step, pending = handle, self._pending
        for new in step.added:
            pending[new.id] = len(new.tokens) - new.num_computed
        drawing = step.sequence_ids
        if pending:
            for seq_id, num_tokens in zip(drawing, step.num_tokens, strict=True):
                if seq_id in pending:
                    pending[seq_id] -= num_tokens
            drawing = [seq_id for seq_id in drawing if pending.get(seq_id, 0) <= 0]
            for seq_id in drawing:
                pending.pop(seq_id, None)
        self.num_sequences += len(step.sequence_ids)
        self.num_tokens += sum(step.num_tokens)
        return StepResult(sequence_ids=drawing, token_ids=[_TOKEN] * len(drawing))

    def close(self) -> None:
        self._pending.clear()


NULL_EXECUTOR = Component(
    "executor",
    NullSettings,
    "paged_plugins.bench.null_executor:NullExecutor",
    summary="no model and no cache; for measuring everything else",
)
