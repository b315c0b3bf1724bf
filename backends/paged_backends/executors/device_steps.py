"""Steps launched on a device and collected later, and what samples their tokens there.

The tokens that a launched step samples stay on the device for the next one, and follow to the host
in one small copy. A step of which a request needs the host to choose its token, or to know all
tokens, runs alone, once the steps before it are done.

Shapes: T tokens of S sequences in the batch, R rows of logits, V vocabulary, C rows of
:class:`SequenceRows`.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paged_backends.executors.accelerator import Event
from paged_backends.executors.batch import Batch
from paged_backends.executors.decode_graphs import DecodeGraphs
from paged_backends.executors.device_sampler import DeviceSample, DeviceSampler
from paged_backends.executors.host_device import ModelTimer
from paged_backends.executors.host_steps import HostSteps, LoadedModel
from paged_core.step import StepInput, StepResult


@dataclass(slots=True, eq=False)
class StepHandle:
    """A step that was submitted: in flight, or with its result, or with what it raised."""

    work: _Launched | None = None
    result: StepResult | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Launched:
    """Work of a step in flight, and what collecting it takes."""

    batch: Batch
    sample: DeviceSample
    done: Event
    give_back: Callable[[], None]
    timer: list[ModelTimer]
    prepare: float
    """Seconds that it took the host to launch it."""


class DeviceSteps:
    """Launches steps, and collects them in the order of their launches."""

    def __init__(
        self,
        model: LoadedModel,
        device_sampler: DeviceSampler,
        host_steps: HostSteps,
        graphs: DecodeGraphs | str,
    ) -> None:
        """``graphs``: or why there are none."""
        self._model = model
        self._device_sampler = device_sampler
        self._host_steps = host_steps
        self.told_graphs = str(graphs) if isinstance(graphs, DecodeGraphs) else f"none: {graphs}"
        """Which sizes of batches have one, or why none has."""
        self._graphs = graphs if isinstance(graphs, DecodeGraphs) else None
        self._in_flight: deque[StepHandle] = deque()

    def submit(self, step: StepInput) -> StepHandle:
        """Launch a step; wait only if a request in it needs the host."""
        started = perf_counter()
        model = self._model
        model.apply(step)
        if not step.sequence_ids:
            return StepHandle(result=StepResult(seconds={"prepare": perf_counter() - started}))
        if model.rows.need_host(step.sequence_ids):
            self._settle()
            return StepHandle(result=self._host_steps.run(model.batches.make(step), started))
        batch = model.batches.make(step)
        assert batch is not None
        handle = StepHandle(work=self._launch(batch, started))
        model.rows.expect(batch)
        self._in_flight.append(handle)
        return handle

    def collect(self, handle: StepHandle) -> StepResult:
        """Wait for a step, and for those launched before it."""
        while handle.work is not None:
            self._finish(self._in_flight.popleft())
        if handle.error is not None:
            raise handle.error
        assert handle.result is not None
        return handle.result

    def _settle(self) -> None:
        """Wait for all steps in flight, so that all tokens are known.

        Raises:
            Exception: what one of them raised; it is raised again when that one is collected.
        """
        steps = list(self._in_flight)
        while self._in_flight:
            self._finish(self._in_flight.popleft())
        for handle in steps:
            if handle.error is not None:
                raise handle.error

    # ------------------------------------------------------------------ one step

    def _launch(self, batch: Batch, started: float) -> _Launched:
        """Launch the model, and what samples from its hidden states."""
        model, graphs = self._model, self._graphs
        compute = model.accelerator.compute
        num_taken = None
        if graphs is not None and graphs.fits(batch):
            places_R = np.arange(len(batch.sequences))
            graphed = graphs.prepare(batch)
            run, targets_R, give_back = graphed.run, graphed.targets_S, graphed.give_back
            num_taken = graphed.num_taken
        else:
            places_R = np.flatnonzero(batch.complete_S)
            targets_R = model.accelerator.upload(batch.rows_S[places_R])
            run, give_back = self._eager(batch, places_R), _nothing
        timer: list[ModelTimer] = []
        made: list[Tensor] = []

        def run_model() -> None:
            timer.append(ModelTimer(model.accelerator.device))
            made.append(run())
            timer[0].stop()

        compute.launch(run_model)
        # what follows is prepared while the model runs
        sample = self._device_sampler.prepare(batch, places_R, targets_R, num_taken=num_taken)
        if len(places_R):
            compute.launch(lambda: sample.finish(made.pop()))
        return _Launched(
            batch, sample, compute.record(), give_back, timer, perf_counter() - started
        )

    def _eager(self, batch: Batch, places_R: NDArray[np.int64]) -> Callable[[], Tensor]:
        """Return the model's work of a step, kernel by kernel."""
        model, upload, sampler = self._model, self._model.accelerator.upload, self._device_sampler
        tokens_T, positions_T = upload(batch.tokens_T), upload(batch.positions_T)
        attention = batch.attention(upload)
        last_R = upload(batch.last_S[places_R])
        unknown: tuple[Tensor, Tensor] | None = None
        if batch.unknown_S.any():
            places = np.flatnonzero(batch.unknown_S)
            unknown = upload(batch.last_S[places]), upload(batch.rows_S[places])

        def run() -> Tensor:
            if unknown is not None:
                places, rows = unknown
                tokens_T.index_copy_(0, places, sampler.newest_C.index_select(0, rows))
            return model.forward(tokens_T, positions_T, attention).index_select(0, last_R)

        return run

    def _finish(self, handle: StepHandle) -> None:
        """Wait for a step, and let its sequences know their tokens."""
        work, handle.work = handle.work, None
        assert work is not None
        waiting = perf_counter()
        try:
            work.done.wait()
        except Exception as error:  # noqa: BLE001 - raised again by collect
            handle.error = error
            return
        batch = work.batch
        token_ids, failed = self._device_sampler.read(work.sample, batch)
        self._device_sampler.give_back(work.sample)
        work.give_back()
        self._model.rows.learn(batch, token_ids)
        ids = [batch.sequences[place].id for place in np.flatnonzero(batch.complete_S).tolist()]
        if failed:
            kept = [place for place, seq_id in enumerate(ids) if seq_id not in failed]
            ids, token_ids = [ids[place] for place in kept], [token_ids[place] for place in kept]
        handle.result = StepResult(
            sequence_ids=ids,
            token_ids=token_ids,
            failed=failed,
            seconds={
                "prepare": work.prepare,
                "model": work.timer[0].seconds(),
                "sample": perf_counter() - waiting,
            },
        )


def _nothing() -> None:
    """Nothing was lent."""
