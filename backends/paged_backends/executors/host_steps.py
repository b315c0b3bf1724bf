"""Steps whose tokens are chosen on the host, for all that a request may ask for.

The sequences advance once all of a step is done, so a step that raises leaves them as they were
for the next one.

Shapes: T tokens of a batch.
"""

# ruff: noqa: N803, N806 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from torch import Tensor

from paged_backends.executors.batch import Batch
from paged_backends.executors.loaded_model import LoadedModel
from paged_backends.executors.model_timer import ModelTimer
from paged_backends.executors.step_sampler import StepSampler
from paged_core.interfaces.attention import AttentionBatch
from paged_core.step import StepInput, StepResult


class HostSteps:
    """Runs one step at a time."""

    def __init__(self, model: LoadedModel, sampler: StepSampler) -> None:
        self._model = model
        self._sampler = sampler

    def submit(self, step: StepInput) -> StepResult:
        """Run the whole step; the handle is its result."""
        started = perf_counter()
        self._model.apply(step)
        return self.run(self._model.batches.make(step), started)

    def collect(self, handle: StepResult) -> StepResult:
        """Return what :meth:`submit` computed."""
        return handle

    def run(self, batch: Batch | None, started: float) -> StepResult:
        """Run a step that was applied; all tokens of its sequences are known.

        Args:
            batch: its work; ``None``: there is none but what was applied.
            started: the time when it was begun to be applied.
        """
        accelerator = self._model.accelerator
        if batch is None:
            return StepResult(seconds={"prepare": perf_counter() - started})
        tokens_T, positions_T = map(accelerator.upload, (batch.tokens_T, batch.positions_T))
        attention = batch.attention(accelerator.upload)
        prepared = perf_counter()
        results: list[StepResult] = []

        def work() -> None:
            results.append(self._compute(batch, tokens_T, positions_T, attention))

        accelerator.compute.launch(work)
        accelerator.compute.record().wait()
        (result,) = results
        model = result.seconds["model"]
        seconds = {
            "prepare": prepared - started,
            "model": model,
            "sample": perf_counter() - prepared - model,
        }
        return replace(result, seconds=seconds)

    def _compute(
        self, batch: Batch, tokens_T: Tensor, positions_T: Tensor, attention: AttentionBatch
    ) -> StepResult:
        timer = ModelTimer(self._model.accelerator.device)
        hidden = self._model.forward(tokens_T, positions_T, attention)
        timer.stop()
        return replace(self._sample(batch, hidden), seconds={"model": timer.seconds()})

    def _sample(self, batch: Batch, hidden: Tensor) -> StepResult:
        """Sample for the batch, and only then advance its sequences."""
        sampler, result = self._sampler, StepResult()
        drawn = sampler.draw_best(batch, hidden)
        if drawn is None:
            prompt_logprobs = sampler.prompt_logprobs(batch, hidden)
            candidates = sampler.rank(batch, hidden)
            drawn = sampler.draw(batch, hidden)
            result = StepResult(
                logprobs=drawn.logprobs,
                prompt_logprobs=prompt_logprobs,
                candidates=candidates.logprobs,
                failed=candidates.failed | drawn.failed,
            )
        self._model.rows.advance(batch, drawn.places_R, drawn.token_ids, drawn.failed)
        ids = [batch.sequences[place].id for place in drawn.places_R.tolist()]
        return replace(result, sequence_ids=ids, token_ids=drawn.token_ids)
