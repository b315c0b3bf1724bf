"""Tokens sampled on the device, where the next step finds them.

Shapes: S sequences in the batch, R rows of logits, V vocabulary, C rows of :class:`SequenceRows`.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.executors.accelerator import Accelerator, PinnedBuffers
from paged_backends.executors.batch import Batch, SequenceRows
from paged_backends.sampling.device_sampling import DeviceParams, device_sample
from paged_backends.sampling.random_sampling import best_token
from paged_backends.sampling.row import MAX_TEMPERATURE, uniform_at
from paged_backends.sampling.sampler import unfit_rows
from paged_core.ids import SeqId
from paged_core.interfaces.communicator import Communicator
from paged_core.interfaces.runner import Runner, SupportsBestTokens


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """The tokens that a step samples for the sequences at ``places_R`` of its batch."""

    finish: Callable[[Tensor], None]
    """Samples from hidden states [R, hidden] and queues the copy to the host; to be launched. Of a
    step that has taken its best tokens it takes what :meth:`DeviceSampler.take_best` returned."""
    places_R: NDArray[np.int64]
    results_2R: Tensor
    """[2, R] int32 on the host: tokens, and the bits of their rows' greatest logits."""
    buffer: Tensor
    """The pinned memory that these are in."""


class DeviceSampler:
    """Samples for sequences in rows below ``num_rows``."""

    def __init__(
        self,
        accelerator: Accelerator,
        runner: Runner,
        rows: SequenceRows,
        *,
        num_rows: int,
        seed: int,
        communicator: Communicator | None = None,
    ) -> None:
        self._accelerator = accelerator
        self._communicator = communicator
        self._runner = runner
        self._rows = rows
        self._seed = seed
        self.no_target = num_rows
        """The row that gets tokens which are not wanted."""
        self.newest_C = torch.zeros(num_rows + 1, dtype=torch.int64, device=accelerator.device)
        """The token that was sampled last for each row."""
        self._results = PinnedBuffers(accelerator, 2 * num_rows, torch.int32)

    def known(self, tokens_B: Tensor, sources_B: Tensor) -> Tensor:
        """Return ``tokens_B``, or the newest token of row ``sources_B`` where that is not < 0."""
        newest_B = self.newest_C.index_select(0, sources_B.clamp_min(0))
        return torch.where(sources_B < 0, tokens_B, newest_B)

    def is_greedy(self, batch: Batch) -> bool:
        """Return True if every sequence asks for its best token and nothing else."""
        return bool(self._rows.plain_C[batch.rows_S].all())

    def take_best(self, hidden_RH: Tensor, targets_R: Tensor) -> Tensor:
        """Sample the best token of each row for the sequences in rows ``targets_R``; return tokens
        and the bits of their logits [2, R] int32. It may be captured in a graph."""
        runner = self._runner
        if isinstance(runner, SupportsBestTokens):
            tokens_R, peaks_R = runner.best_tokens(hidden_RH)
        else:
            logits_RV = runner.logits(hidden_RH)
            tokens_R = best_token(logits_RV)
            peaks_R = logits_RV.gather(1, tokens_R[:, None])[:, 0]
        return self._keep(tokens_R, peaks_R.float(), targets_R)

    def prepare(
        self,
        batch: Batch,
        places_R: NDArray[np.int64],
        targets_R: Tensor,
        *,
        num_taken: int | None = None,
    ) -> DeviceSample:
        """Prepare to sample for these sequences of a step whose model is launched already.

        Args:
            targets_R: their rows; ``no_target`` for tokens that are not wanted.
            num_taken: rows of which the step takes the best tokens itself, as many or more.
        """
        params_5R = None if num_taken is not None else self._params(batch, places_R)
        num_rows = len(places_R) if num_taken is None else num_taken
        buffer = self._results.take()
        results_2R = buffer[: 2 * num_rows].view(2, -1)

        def finish(made: Tensor) -> None:
            if num_taken is not None:
                made_2R = made
            elif params_5R is None:
                made_2R = self.take_best(made, targets_R)
            else:
                sampled = device_sample(self._runner.logits(made), _device_params(params_5R))
                if self._communicator is not None:  # sums may be rounded in another order there
                    self._communicator.broadcast(sampled.tokens_R)
                made_2R = self._keep(sampled.tokens_R, sampled.peaks_R, targets_R)
            results_2R.copy_(made_2R, non_blocking=True)

        return DeviceSample(finish, places_R, results_2R[:, : len(places_R)], buffer)

    def _keep(self, tokens_R: Tensor, peaks_R: Tensor, targets_R: Tensor) -> Tensor:
        self.newest_C.index_copy_(0, targets_R, tokens_R)
        return torch.stack((tokens_R.int(), peaks_R.view(torch.int32)))

    def read(self, sample: DeviceSample, batch: Batch) -> tuple[list[int], dict[SeqId, str]]:
        """Return what was sampled for the complete sequences of the batch, in order, and why some
        of them failed; the device is done with ``sample``."""
        tokens_R, bits_R = sample.results_2R
        failed = {
            batch.sequences[int(sample.places_R[row])].id: reason
            for row, reason in unfit_rows(bits_R.view(torch.float32)).items()
        }
        token_ids: list[int] = tokens_R.tolist()
        wanted_R = batch.complete_S[sample.places_R]
        if not wanted_R.all():
            token_ids = [token_ids[row] for row in np.flatnonzero(wanted_R).tolist()]
            incomplete = {batch.sequences[n].id for n in np.flatnonzero(~batch.complete_S).tolist()}
            failed = {seq_id: why for seq_id, why in failed.items() if seq_id not in incomplete}
        return token_ids, failed

    def give_back(self, sample: DeviceSample) -> None:
        """Let another step have the pinned memory of ``sample``."""
        self._results.give_back(sample.buffer)

    def _params(self, batch: Batch, places_R: NDArray[np.int64]) -> Tensor | None:
        """Return [5, R] float64 in the order of :class:`DeviceParams`; ``None``: all greedy."""
        if self._rows.plain_C[batch.rows_S[places_R]].all():
            return None
        numbers = []
        for place in places_R.tolist():
            row = batch.sequences[place].sampling
            if not row.sampled:
                numbers.append((0.0, 0.0, 0.0, 1.0, 0.0))
                continue
            asked, position = row.sampling, int(self._rows.num_tokens_C[batch.rows_S[place]])
            numbers.append(
                (
                    min(asked.temperature, MAX_TEMPERATURE),
                    asked.min_p,
                    float(asked.top_k),
                    asked.top_p,
                    uniform_at(row, position, self._seed),
                )
            )
        return self._accelerator.upload(np.ascontiguousarray(np.array(numbers).T))


def _device_params(params_5R: Tensor) -> DeviceParams:
    temperature, min_p, top_k, top_p, uniform = params_5R.unbind(0)
    return DeviceParams(
        temperature=temperature.float(),
        min_p=min_p.float(),
        top_k=top_k.int(),
        top_p=top_p.float(),
        uniform=uniform,
    )
