"""Component ``simulated``: steps that take time on a virtual clock, and compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from paged_core.clock import Clock, VirtualClock
from paged_core.errors import SettingsError
from paged_core.interfaces.component_factory import make_component
from paged_core.interfaces.executor import Capacity, Executor, ExecutorParts
from paged_core.step import StepInput, StepResult
from paged_plugins.lab.cost_model import IDLE_SECONDS, CostModel, CostModelParts, StepWork
from paged_plugins.lab.runs.work_count import WorkCount
from paged_plugins.lab.simulation.answers import Answers
from paged_plugins.lab.simulation.settings import SimulatedSettings
from paged_plugins.lab.simulation.steady_batch import SteadyBatch

MAX_BLOCKS = 4_000_000
"""Blocks that a block allocator keeps account of without a model, at most."""
_NUM_TOKENS = 65_536
"""Slots of the cache, where neither the settings nor the cost model say how many there are."""

_MOST_SECONDS = 1e9
"""Of a step: more is taken for a mistake."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was submitted."""

    work: StepWork
    result: StepResult
    ends: float
    """Seconds on the clock at which its result is there."""


class SimulatedExecutor(Executor):
    """Runs steps without a model: each takes the time that the cost model predicts.

    A step begins when it is submitted or when the one before it ends, whichever is later, so that
    ``async_scheduling`` hides the time of planning as on a device. ``collect`` moves the clock to
    its end: a virtual one of its own, or the one that the engine was given, if that can sleep (on
    the time of this machine a simulation takes as long as what it simulates).

    Any token id is served, none ends a sequence, and each sequence draws tokens of its own: greedy
    sequences of one request draw the same, as a model would. Beams are ranked, and
    log-probabilities reported, by arbitrary but repeatable numbers. A request that needs logits
    (logits processors, log-probabilities of the prompt) fails, with that reason.
    """

    def __init__(self, options: SimulatedSettings, parts: ExecutorParts, /) -> None:
        self._settings = parts.settings
        self._needs_host_blocks = parts.needs_host_blocks
        self.cost_model: CostModel = make_component(
            parts.registry,
            "cost_model",
            dict(parts.settings)["cost_model"],
            CostModelParts(settings=parts.settings),
        )
        """Predicts the time of a step."""
        self.clock: Clock = parts.clock if isinstance(parts.clock, Clock) else VirtualClock()
        self._count = WorkCount()
        self._answers = Answers()
        self._steady: SteadyBatch | None = None
        """The last step, if the next one may repeat it."""
        self._ends = 0.0
        """When the last step that was submitted ends."""
        self.watch: Callable[[StepWork], None] = lambda work: None
        """Called with the work of each step that is collected."""

    def start(self) -> Capacity:
        settings, size = self._settings, self._settings.block_size
        num_blocks = settings.num_blocks or self.cost_model.num_blocks(size)
        num_blocks = num_blocks or max(1, _NUM_TOKENS // size)
        num_host_blocks = settings.num_host_blocks
        if num_host_blocks is None:
            num_host_blocks = num_blocks if self._needs_host_blocks else 0
        if num_blocks + num_host_blocks > MAX_BLOCKS:
            raise SettingsError(
                f"num_blocks={num_blocks} and num_host_blocks={num_host_blocks}: a simulation has "
                f"{MAX_BLOCKS:,} blocks at most; lower one of them or raise block_size"
            )
        longest = min(self.cost_model.max_model_len or MAX_BLOCKS, num_blocks * size)
        return Capacity(
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            max_model_len=settings.max_model_len or longest,
        )

    def submit(self, step: StepInput, /) -> Any:
        work, result = self._run(step)
        now = self.clock()
        work.after_idle = int(now - self._ends > IDLE_SECONDS)
        seconds = self.cost_model.seconds(work)
        if not seconds <= _MOST_SECONDS:
            name = dict(self._settings)["cost_model"].name
            raise SettingsError(
                f"cost_model {name!r}: a step would take {seconds:g} s, and {_MOST_SECONDS:g} s is "
                "the most; change its options"
            )
        self._ends = max(now, self._ends) + seconds
        return _Step(work, result, self._ends)

    def _run(self, step: StepInput) -> tuple[StepWork, StepResult]:
        """Return the work in a step and what it draws."""
        if self._steady is not None:
            if self._steady.repeats(step):
                return self._steady.next(step)
            self._steady.settle()
            self._steady = None
        self._answers.learn(step)
        work, complete = self._count.take(step)
        is_plain = self._answers.are_plain
        result = self._answers.draw(complete)
        if is_plain and len(complete) == len(step.sequence_ids):
            self._steady = SteadyBatch(complete, result)
        return work, result

    def collect(self, handle: Any, /) -> StepResult:
        step = cast("_Step", handle)
        now = self.clock()
        if step.ends > now:
            self.clock.sleep(step.ends - now)
        self.watch(step.work)
        return step.result

    def close(self) -> None:
        self._count.clear()
        self._answers.clear()
        self._steady = None
