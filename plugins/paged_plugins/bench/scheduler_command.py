"""``paged-core bench scheduler``: the cost of a step without a model, in a steady state."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from time import process_time
from typing import Annotated, Any, Literal, cast

import typer

from paged_core.cli.options import AsJson, SettingsArgs, flag
from paged_core.cli.output import print_table
from paged_core.engine.contexts import ExecutorContext
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.step import StepInput, StepResult
from paged_plugins.bench.device import machine
from paged_plugins.command_options import JsonFile, Repeats, report
from paged_plugins.progress import progress

_SLOTS = ("scheduler", "queue_order", "block_allocator")
_COLUMNS = (*_SLOTS, "num_running", "num_waiting", "us_per_step", "us_per_sequence")
_DEFAULTS = {"queue_order": ["fcfs"], "block_allocator": ["hash_cached", "uncached"]}
"""Components measured where nothing is named; of other slots, all."""
_FILLING_STEPS = 1000
_VOCABULARY = 1 << 15
_TOKEN = 1


def scheduler_command(
    given: SettingsArgs,
    schedulers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Schedulers, comma-separated or repeated (default: all)."
        ),
    ] = None,
    queue_orders: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES", help="Queue orders, comma-separated or repeated (default: fcfs)."
        ),
    ] = None,
    block_allocators: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Allocators, comma-separated or repeated (default: hash_cached and uncached).",
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="All components of each kind not named; takes a minute."),
    ] = False,
    num_running: Annotated[int, typer.Option(min=1, help="Sequences that run (decode).")] = 256,
    num_waiting: Annotated[int, typer.Option(min=0, help="Requests that wait.")] = 1000,
    context: Annotated[int, typer.Option(min=1, help="Tokens of each sequence.")] = 2048,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per block.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Steps in one repeat.")] = 64,
    repeats: Repeats = 9,
    as_json: AsJson = False,
    output: JsonFile = None,
) -> None:
    """Measure what a step costs without a model: microseconds per step and per sequence.

    In a steady state with a fixed number of decoding sequences and of waiting requests, for every
    combination of the schedulers, queue orders and block allocators asked for. Everything that the
    engine does in a step is measured: scheduling, block allocation, building the step input,
    appending tokens, checking stop conditions. Other settings, such as --evictor, apply to all.
    """
    _check_options(given)
    given = replace(
        given, registry=given.registry.extended(NULL_EXECUTOR, plugin="bench_scheduler")
    )
    state = SteadyState(
        num_running=num_running,
        num_waiting=num_waiting,
        context=context,
        block_size=block_size,
        steps=steps,
        repeats=repeats,
    )
    named = (schedulers, queue_orders, block_allocators)
    chosen = [
        _names(given, slot, names, None if all_ else _DEFAULTS.get(slot))
        for slot, names in zip(_SLOTS, named, strict=True)
    ]
    found = {"machine": machine(), "rows": list(_rows(state, given, list(product(*chosen))))}
    report(found, output, as_json, lambda found: _print(state, found))


def _check_options(given: SettingsArgs) -> None:
    """Refuse settings that this command sets itself.

    Raises:
        SettingsError: one was given; the message names the option to use instead.
    """
    instead = {
        "scheduler": "--schedulers",
        "queue_order": "--queue-orders",
        "block_allocator": "--block-allocators",
        "num_blocks": "--num-running and --context",
        "max_model_len": "--context",
        "watermark": "--num-running",
        "executor": "another command",
    }
    for entry in given.options:
        if entry.path[0] in instead and entry.path[1:] in ((), ("name",)):
            raise SettingsError(
                f"{flag(entry.path)} has no effect here; use {instead[entry.path[0]]}"
            )


def _names(
    given: SettingsArgs, slot: str, names: Sequence[str] | None, default: Sequence[str] | None
) -> list[str]:
    """Return the components to measure; without names and default, all.

    Raises:
        PluginError: a component does not exist.
    """
    named = [name for some in names or () for name in some.split(",") if name]
    chosen = named or default or list(given.registry.of(slot))
    return [given.registry.get(slot, name).name for name in dict.fromkeys(chosen)]


def _rows(
    state: SteadyState, given: SettingsArgs, combinations: Sequence[tuple[str, ...]]
) -> Iterator[dict[str, Any]]:
    with progress(len(combinations), "measuring") as advance:
        for names in combinations:
            yield state.measure(given, dict(zip(_SLOTS, names, strict=True)))
            advance()


def _print(state: SteadyState, found: dict[str, Any]) -> None:
    computer = found["machine"]
    title = (
        f"Microseconds per step and per sequence: {state.context} tokens of context, blocks of "
        f"{state.block_size}, median of {state.repeats}\n"
        f"{computer['cpu']}, {computer['cores']} cores, {computer['python']}"
    )
    rows = [
        [
            f"{row[column]:.2f}" if isinstance(row[column], float) else row[column]
            for column in _COLUMNS
        ]
        for row in found["rows"]
    ]
    print_table(title, [column.replace("_", " ") for column in _COLUMNS], rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """``num_running`` decoding sequences, and ``num_waiting`` requests that cannot be admitted.

    Each running sequence has ``context`` tokens when the measurement begins, less up to a block, so
    that in every step one in ``block_size`` of them needs a new block. No two requests share a
    prefix.

    What is measured is the processor time of ``Engine.step()`` over an executor that does nothing:
    scheduling, allocating and caching blocks, building the step input, appending tokens,
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

    def measure(self, given: SettingsArgs, parts: Mapping[str, str]) -> dict[str, Any]:
        """Return one result row: the median over the repeats.

        Args:
            given: the other settings; its registry has the executor ``null``.
            parts: the scheduler, queue order and block allocator, by slot.

        Raises:
            SettingsError: a component does not exist, the settings contradict each other, or the
                scheduler does not run all sequences at once.
        """
        engine = self.build(given, parts)
        try:
            seconds, num_sequences = self._run(engine)
        finally:
            engine.close()
        us_per_step = median(seconds) / self.steps * 1e6
        return {
            **parts,
            "num_running": self.num_running,
            "num_waiting": self.num_waiting,
            "context": self.context,
            "block_size": self.block_size,
            "us_per_step": round(us_per_step, 3),
            "us_per_sequence": round(us_per_step * self.steps * self.repeats / num_sequences, 4),
            "repeats": self.repeats,
        }

    def build(self, given: SettingsArgs, parts: Mapping[str, str]) -> Engine:
        """Return an engine in the steady state; as :meth:`measure`."""
        scheduler = parts["scheduler"]
        tables: dict[str, dict[str, Any]] = {slot: {"name": name} for slot, name in parts.items()}
        tables["scheduler"] |= self._limits(given, scheduler)
        max_model_len = self.context + self.steps * self.repeats + 8
        settings = given.resolve(
            **tables,
            executor="null",
            block_size=self.block_size,
            max_model_len=max_model_len,
            # one more block per sequence: some schedulers want it free even if it is not needed
            num_blocks=self.num_running * (-(-max_model_len // self.block_size) + 1),
            watermark=0.0,
        ).settings
        engine = build_engine(settings, given.registry)
        try:
            self._fill(engine, scheduler)
        except BaseException:
            engine.close()
            raise
        return engine

    def _limits(self, given: SettingsArgs, scheduler: str) -> dict[str, int]:
        """Scheduler options that admit all running sequences in one step, and no others."""
        known = given.registry.get("scheduler", scheduler).settings.model_fields
        limits = {
            "max_num_seqs": self.num_running,
            "max_num_batched_tokens": self.num_running * self.context,
            "max_step_seconds": 1_000_000,  # as a cost model predicts them
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


class NullSettings(ComponentSettings):
    """Options of :class:`NullExecutor`."""

    name: Literal["null"] = "null"


class NullExecutor(Executor):
    """Does almost no work, so that the time of a step is the engine's own.

    ``settings.num_blocks`` and ``settings.max_model_len`` must be given.
    """

    def __init__(self, options: NullSettings, context: ExecutorContext, /) -> None:
        self._settings = context.settings
        self._needs_host_blocks = context.needs_host_blocks
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
    "paged_plugins.bench.scheduler_command:NullExecutor",
    summary="no model and no cache; for measuring everything else",
)
