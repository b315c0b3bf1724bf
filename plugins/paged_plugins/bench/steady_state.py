"""An engine in which a fixed crowd runs and another waits, and what a step of it costs."""

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
    """``num_running`` sequences that all decode, and ``num_waiting`` requests that cannot join.

    Each running sequence has ``context`` tokens when the measurement begins, less up to a block, so
    that in every step one in ``block_size`` of them needs a block. No two requests share a prefix.

    What is measured is the processor time of ``Engine.step()`` over an executor that does nothing:
    deciding, reserving blocks and publishing them, making the step's input, appending tokens,
    checking for the end. Filling the engine is not measured. Python's garbage collector is on, as
    it is for users, and what it takes within a repeat counts; what building the engine left behind
    is collected before. A full collection is rare and looks at every object in the process: one
    that falls into a repeat makes an outlier of it, which the median over the repeats leaves out.
    """

    num_running: int
    num_waiting: int
    context: int
    block_size: int
    steps: int
    """In one repeat."""
    repeats: int

    def measure(
        self, given: Given, *, scheduler: str, queue_order: str, block_allocator: str
    ) -> dict[str, Any]:
        """Return one row of figures: the median over the repeats.

        Args:
            given: what else was set; its registry knows the executor ``null``.

        Raises:
            SettingsError: there is no such component, the settings contradict each other, or the
                engine does not come to rest with everybody running.
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
            scheduler={"name": scheduler} | self._room(given, scheduler),
            queue_order={"name": queue_order},
            block_allocator={"name": block_allocator},
            block_size=self.block_size,
            max_model_len=max_model_len,
            # a block more for everyone: some schedulers want it free whether it is needed or not
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

    def _room(self, given: Given, scheduler: str) -> dict[str, int]:
        """Options that let everyone run who should, and start in one step, and nobody else."""
        known = given.registry.get("scheduler", scheduler).settings.model_fields
        room = {
            "max_num_seqs": self.num_running,
            "max_num_batched_tokens": self.num_running * self.context,
        }
        return {option: value for option, value in room.items() if option in known}

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
        """Those to run, then those to wait: no shorter, no earlier, so nobody gives way to them."""
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
        """Measure; return the seconds of every repeat and the sequences scheduled in all."""
        executor = cast("NullExecutor", engine.executor)
        engine.step()  # the first one after arrivals may have to sort them in
        executor.num_sequences = 0
        gc.collect()
        seconds = []
        for _ in range(self.repeats):
            started = process_time()
            for _ in range(self.steps):
                engine.step()
            seconds.append(process_time() - started)
        return seconds, executor.num_sequences
