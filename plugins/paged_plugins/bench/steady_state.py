"""An engine in a steady state of running and waiting requests, and what a step costs in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import Any, cast

from paged_core.cli.options import Given
from paged_core.engine import Engine
from paged_core.errors import SettingsError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.wiring import build_engine
from paged_plugins.bench.null_executor import NullExecutor

_FILLING_STEPS = 1000
_VOCABULARY = 1 << 15


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """``num_running`` decoding sequences, and ``num_waiting`` requests that cannot be admitted.

    Each running sequence has ``context`` tokens when the measurement begins, less up to a block, so
    that in every step one in ``block_size`` of them needs a new block. No two requests share a
    prefix.

    What is measured is the processor time of ``Engine.step()`` over an executor that does nothing:
    scheduling, allocating and publishing blocks, building the step input, appending tokens,
    checking stop conditions. Filling the engine is not measured. Python's garbage collector is on,
    as it is for users, and its time within a repeat counts; the garbage of building the engine is
    collected before. A full collection is rare and visits every object in the process: a repeat
    that contains one is an outlier, which the median over the repeats leaves out.
    """

    num_running: int
    num_waiting: int
    context: int
    block_size: int
    steps: int
    """Steps per repeat."""
    repeats: int

    def measure(
        self, given: Given, *, scheduler: str, queue_order: str, block_allocator: str
    ) -> dict[str, Any]:
        """Return one result row: the median over the repeats.

        Args:
            given: the other settings; its registry has the executor ``null``.

        Raises:
            SettingsError: a component does not exist, the settings contradict each other, or the
                scheduler does not run all sequences at once.
        """
        engine = self.build(
            given, scheduler=scheduler, queue_order=queue_order, block_allocator=block_allocator
        )
        try:
            seconds, num_sequences = self._run(engine)
        finally:
            engine.close()
        us_per_step = median(seconds) / self.steps * 1e6
        return {
            "scheduler": scheduler,
            "queue_order": queue_order,
            "block_allocator": block_allocator,
            "num_running": self.num_running,
            "num_waiting": self.num_waiting,
            "context": self.context,
            "block_size": self.block_size,
            "us_per_step": round(us_per_step, 3),
            "us_per_sequence": round(us_per_step * self.steps * self.repeats / num_sequences, 4),
            "repeats": self.repeats,
        }

    def build(
        self, given: Given, *, scheduler: str, queue_order: str, block_allocator: str
    ) -> Engine:
        """Return an engine in the steady state; as :meth:`measure`."""
        registry = given.registry
        max_model_len = self.context + self.steps * self.repeats + 8
        settings = given.resolve(
            executor="null",
            scheduler={"name": scheduler} | self._limits(given, scheduler),
            queue_order={"name": queue_order},
            block_allocator={"name": block_allocator},
            block_size=self.block_size,
            max_model_len=max_model_len,
            # one more block per sequence: some schedulers want it free even if it is not needed
            num_blocks=self.num_running * (-(-max_model_len // self.block_size) + 1),
            watermark=0.0,
        ).settings
        engine = build_engine(settings, registry)
        try:
            self._fill(engine, scheduler)
        except BaseException:
            engine.close()
            raise
        return engine

    def _limits(self, given: Given, scheduler: str) -> dict[str, int]:
        """Scheduler options that admit all running sequences in one step, and no others."""
        known = given.registry.get("scheduler", scheduler).settings.model_fields
        limits = {
            "max_num_seqs": self.num_running,
            "max_num_batched_tokens": self.num_running * self.context,
        }
        return {option: value for option, value in limits.items() if option in known}

    def _fill(self, engine: Engine, scheduler: str) -> None:
        executor = cast("NullExecutor", engine.executor)
        now = engine.clock()
        requests = self._requests(now)
        for _ in range(self.num_running):
            engine.add(next(requests))
        while any(
            group.live[0].num_pending != 1 or not group.live[0].output for group in engine.groups
        ):
            engine.step()
            if engine.num_steps > _FILLING_STEPS:
                raise SettingsError(
                    f"scheduler {scheduler!r} does not let {self.num_running} sequences of "
                    f"{self.context} tokens run at once; use a smaller --num-running or --context"
                )
        for request in requests:
            engine.add(request)
        executor.num_sequences = executor.num_tokens = 0

    def _requests(self, now: float) -> Iterator[Request]:
        """The requests to run, then those to wait; these are no shorter and no earlier, so that no
        running request is preempted for them.
        """
        sampling = SamplingParams(max_tokens=None, ignore_eos=True)
        filler = tuple(i % _VOCABULARY for i in range(self.context))
        for number in range(self.num_running + self.num_waiting):
            is_running = number < self.num_running
            length = self.context - number % self.block_size if is_running else self.context
            length = max(1, length)
            own = (number % _VOCABULARY, number // _VOCABULARY)
            yield Request(
                id=str(number),
                prompt=(own + filler)[:length],
                sampling=sampling,
                arrival=now + 1e-6 * number,
            )

    def _run(self, engine: Engine) -> tuple[list[float], int]:
        """Measure; return the seconds of every repeat and the total of scheduled sequences."""
        executor = cast("NullExecutor", engine.executor)
        engine.step()  # the first step after arrivals may sort the waiting queue
        executor.num_sequences = 0
        gc.collect()
        seconds = []
        for _ in range(self.repeats):
            started = process_time()
            for _ in range(self.steps):
                engine.step()
            seconds.append(process_time() - started)
        return seconds, executor.num_sequences
