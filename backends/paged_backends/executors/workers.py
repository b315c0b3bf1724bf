"""Component ``workers``: another executor's steps in one process or several, the ranks of a model.

Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019). There is one scheduler; the same step, with the same block ids, goes to every
rank, each computes its share of every layer, and the first one samples.
"""

from __future__ import annotations

import os
import pickle
import secrets
import select
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from paged_backends.executors.settings import WorkersOptions
from paged_backends.executors.worker import Worker
from paged_backends.executors.worker_main import COLLECT, START, STEP, Started
from paged_core.engine.contexts import ExecutorContext, Maker
from paged_core.errors import EngineError, ExecutorLost, RequestError, SettingsError
from paged_core.interfaces.communicator import RankGroup
from paged_core.interfaces.executor import (
    Capacity,
    Executor,
    SupportsSamplingDefaults,
    SupportsText,
)
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.log import get_logger
from paged_core.plugins.making import make_component
from paged_core.processes.channel import ERROR, free_port
from paged_core.processes.child import Child, PythonChild
from paged_core.processes.failures import error_of
from paged_core.processes.ray_child import TOLD, Cluster, RayChild, room
from paged_core.settings.schema import EngineSettings
from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs

_TARGET = "paged_backends.executors.worker_main:main"
_HERE = "127.0.0.1"
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/{}"
_GRACE = 5.0
"""Seconds that the others have to answer once one worker has answered with an error: it may have
left them waiting for it."""
_PLACING = 120.0
"""Seconds that a cluster may take to find room, and then to start the actors."""

_log = get_logger()


class WorkersExecutor(Executor):
    """Sends each step to all workers, and may get the next one meanwhile; the first one's result
    counts.

    If one is lost, all are ended, which is ``ExecutorLost``; :meth:`start` then starts others.
    """

    runs_in_background = True

    def __init__(self, options: WorkersOptions, context: ExecutorContext, /) -> None:
        found = context.registry.of("executor")
        own = found[options.name].factory
        refused = [name for name, record in found.items() if record.factory == own]
        inner = options.inner.options("executor", "inner", context.registry, refused=refused)
        settings = context.settings.model_copy(update={"executor": inner})
        self._context = replace(context, settings=settings, clock=None)
        self._options = options
        self._cluster: Cluster | None = None
        self._places: Any = None
        """Resources of the cluster that are reserved for the workers."""
        self._workers: list[Worker] = []
        self._started: Started | None = None
        self._is_cut = False
        """True if Ctrl-C came in the middle of a message."""

    # ------------------------------------------------------------------ life

    def start(self) -> Capacity:
        """Start the workers and their executors."""
        self._end_workers()
        self._is_cut = False
        try:
            parts = self._start_workers()
            for worker, part in zip(self._workers, parts, strict=True):
                worker.ask(START, pickle.dumps(part))
            answers: list[Started] = self._answers(0, "while it started", seconds=None)
        except BaseException:
            self._kill()
            self.close()
            raise
        self._started, capacity = answers[0], answers[0].capacity
        if any(other.capacity != capacity for other in answers):
            self.close()
            raise EngineError(f"the ranks hold different things: {answers}")
        sizes = {
            "num_blocks": capacity.num_blocks,
            "num_host_blocks": capacity.num_host_blocks,
            "max_model_len": capacity.max_model_len,
        }  # what memory is free may change, and the capacity may not
        settings = self._context.settings.model_copy(update=sizes)
        self._context = replace(self._context, settings=settings)
        _log.info("workers_started", names=[worker.name for worker in self._workers])
        return replace(capacity, remote=True)

    def close(self) -> None:
        """End the workers."""
        self._end_workers()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _end_workers(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            if self._is_cut:
                worker.child.kill()
            else:
                worker.ask_to_end()
        for worker in workers:
            worker.close()
        places, self._places = self._places, None
        if places is not None and self._cluster is not None:
            self._cluster.ray.util.remove_placement_group(places)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.child.kill()

    def model_size(self) -> ModelSize | None:
        """Return the size of the model; ``None`` before the start, or if it is not known."""
        return None if self._started is None else self._started.model_size

    def tokenizer(self) -> Tokenizer | None:
        """Return what the other executor's model has; it is read in this process."""
        inner = self._inner()
        return inner.tokenizer() if isinstance(inner, SupportsText) else None

    def sampling_defaults(self) -> Mapping[str, Any]:
        """Return what the other executor's model has."""
        inner = self._inner()
        return inner.sampling_defaults() if isinstance(inner, SupportsSamplingDefaults) else {}

    def _inner(self) -> Executor:
        """Return the other executor, which is not started here."""
        parts = self._context
        made: Executor = make_component(parts.registry, "executor", parts.settings.executor, parts)
        return made

    # ------------------------------------------------------------------ the workers

    def _start_workers(self) -> list[ExecutorContext]:
        """Start them; return the parts of the executor of each."""
        options, size = self._options, self._options.ranks
        names = [f"executor {options.name!r}, rank {rank} of {size}" for rank in range(size)]
        if options.placement == "ray":
            host, port, num_cores = self._start_actors(names)
        else:
            host, port, num_cores = _HERE, free_port(_HERE), self._start_processes(names)
        group = RankGroup(
            name=f"paged-core-{os.getpid()}-{secrets.token_hex(6)}",
            host=host,
            port=port,
            timeout=options.communicator_timeout,
        )
        return [self._parts(rank, group, num_cores) for rank in range(size)]

    def _start_processes(self, names: Sequence[str]) -> int:
        """Start a process for each name; return how many cores it has."""
        options, shares = self._options, shares_of_cores(len(names))
        settings, pins = self._context.settings, options.pin_cores
        if pins == "auto":
            pins = _deals_threads(settings)
        pins = pins and settings.device in ("auto", "cpu")
        for name, cores in zip(names, shares, strict=True):
            cpus = [cpu for core in cores for cpu in core] if pins else ()
            self._add(PythonChild(_TARGET, name=name, num_channels=2, cores=cpus))
        return max(1, len(shares[0]))

    def _start_actors(self, names: Sequence[str]) -> tuple[str, int, int]:
        """Start an actor for each name; return where they meet, and how many cores each has.

        That is the address of a machine to itself if all are on one.

        Raises:
            SettingsError: the cluster has no room.
            ExecutorLost: an actor has not come.
        """
        num_cores = self._context.settings.threads or 1
        resources = {"CPU": float(num_cores)}
        if self._context.settings.device.startswith("cuda"):
            resources["GPU"] = 1.0
        if self._cluster is None:
            wanted = max(len(names) * num_cores, os.cpu_count() or 1)
            self._cluster = Cluster("executor.placement", num_cpus=wanted)
        ray = self._cluster.ray
        places = self._places = ray.util.placement_group([resources] * len(names), "PACK")
        if not places.wait(min(TOLD, _PLACING)):
            _log.warning("ranks_wait", reason=room(ray, resources))
        if not places.wait(_PLACING):
            raise SettingsError(
                f"executor.placement: the Ray cluster has no room for {len(names)} ranks; "
                f"each: {room(ray, resources)}"
            )
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        children = [
            RayChild(
                _TARGET,
                name=name,
                num_channels=2,
                options={
                    "num_cpus": resources["CPU"],
                    "num_gpus": resources.get("GPU", 0),
                    "scheduling_strategy": strategy(places, placement_group_bundle_index=number),
                },
            )
            for number, name in enumerate(names)
        ]
        try:
            for child in children:
                child.meet(_PLACING)
        except (EngineError, TimeoutError) as error:
            for child in children:
                child.close()
            raise ExecutorLost(f"a rank could not be started on Ray: {error}") from error
        for child in children:
            self._add(child)
        found = [child.place for child in children if child.place is not None]
        is_one = len({place.node for place in found}) == 1
        return _HERE if is_one else found[0].host, found[0].port, num_cores

    def _add(self, child: Child) -> None:
        self._workers.append(Worker(child, self._options.heartbeat_timeout))

    def _parts(self, rank: int, group: RankGroup, num_cores: int) -> ExecutorContext:
        """Return those of one rank."""
        parts, size = self._context, self._options.ranks
        settings = parts.settings
        if size > 1 and _deals_threads(settings):
            settings = settings.model_copy(update={"threads": num_cores})
        if self._options.placement == "ray" and settings.device == "cuda":
            settings = settings.model_copy(update={"device": "cuda:0"})  # the actor sees no other
        return replace(
            parts,
            settings=settings,
            maker=Maker(settings, parts.registry),
            rank=rank,
            size=size,
            group=group if size > 1 else None,
        )

    # ------------------------------------------------------------------ steps

    def submit(self, step: StepInput, /) -> Any:
        """Send a step."""
        workers = self._running()
        content = pickle.dumps(step, pickle.HIGHEST_PROTOCOL)
        return workers, self._send(STEP, content)

    def collect(self, handle: Any, /) -> StepResult:
        """Wait for the result of a step."""
        workers, number = handle
        if workers is not self._running():
            raise ExecutorLost("the process that had this step has ended")
        if (
            self._started is not None
            and self._started.runs_in_background
            and number == workers[0].num_asked - 1
        ):
            self._send(COLLECT)  # else the next step makes it collect this one
        result: StepResult = self._answers(number, "in a step", seconds=self._options.step_timeout)[
            0
        ]
        return result

    def compile_grammar(self, form: StructuredOutputs, /) -> Future[None]:
        """Have a form compiled by the worker that samples; any thread may ask for it."""
        workers, started = self._running(), self._started
        if started is not None and started.capacity.grammars:
            return workers[0].grammars.compile(form)
        refused: Future[None] = Future()
        name = self._context.settings.executor.name
        refused.set_exception(RequestError(f"executor.inner {name!r} holds no output to a form"))
        return refused

    def _running(self) -> list[Worker]:
        if self._started is None:
            raise EngineError("the executor is not running; start it first")
        if not self._workers:
            raise ExecutorLost("its process has ended")
        return self._workers

    # ------------------------------------------------------------------ messages

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Send or read messages; if Ctrl-C cuts one off, nothing more can be made of what follows.

        Raises:
            ExecutorLost: one was cut off before; the workers are ended.
        """
        if self._is_cut:
            self._kill()
            raise ExecutorLost(
                f"{self._workers[0].name} was ended, because Ctrl-C had cut off a message to or "
                "from it, or to another rank"
            )
        self._is_cut = True
        try:
            yield
        except ExecutorLost:
            self._kill()
            raise
        self._is_cut = False

    def _send(self, kind: bytes, content: bytes = b"") -> int:
        """Send the same to all workers; return the number of a step's answer."""
        number = 0
        with self._whole():
            for worker in self._workers:
                if kind == STEP:
                    number = worker.ask(kind, content)
                else:
                    worker.send(kind, content)
        return number

    def _answers(self, number: int, doing: str, *, seconds: float | None) -> list[Any]:
        """Return what was asked for, or raise what was raised in all workers.

        Raises:
            ExecutorLost: a worker is lost, or some have raised and others not: they are no longer
                at the same place.
        """
        workers = self._workers
        try:
            self._await(number, doing, seconds)
        except ExecutorLost:
            self._kill()
            raise
        answers = [worker.answer(number) for worker in workers]
        for worker in workers:
            worker.forget(number)
        raised = [
            (worker, error_of(answer[1]))
            for worker, answer in zip(workers, answers, strict=True)
            if answer is not None and answer[0] == ERROR
        ]
        if not raised:
            return [pickle.loads(answer[1]) for answer in answers if answer is not None]
        own = [one for one in raised if not isinstance(one[1], ExecutorLost)]
        worker, error = (own or raised)[0]
        if len(workers) == 1 or len(own) == len(workers) or number == 0:  # 0: the start
            raise error
        self._kill()
        raise ExecutorLost(f"{worker.name} raised {type(error).__name__}: {error}") from error

    def _await(self, number: int, doing: str, seconds: float | None) -> None:
        """Wait for an answer of each worker.

        If one answers with an error, the others have a short time: some may have no answer then.

        Args:
            doing: what they do meanwhile, for errors: ``while ...``.
            seconds: after which one counts as hung, whatever it says; ``None``: never.

        Raises:
            ExecutorLost: a worker has ended, or has hung; then it is killed.
        """
        started, limit = monotonic(), float("inf")
        news, waiting = select.poll(), dict[int, Worker]()
        for worker in self._workers:
            if worker.answer(number) is None:
                worker.heartbeat.heard()
                waiting[worker.channel.fileno()] = worker
                news.register(worker.channel.fileno(), select.POLLIN)
        while waiting:
            now = monotonic()
            if seconds is not None and now - started > seconds:
                late = next(iter(waiting.values()))
                raise late.hung(f"has not finished after {seconds:g} s {doing}", "step_timeout")
            if now > limit:
                return
            for worker in waiting.values():
                worker.watch(doing)
            patience = min(worker.heartbeat.patience for worker in waiting.values())
            for file, _ in news.poll(1000 * max(0.0, min(patience, limit - now))):
                worker = waiting[file]
                with self._whole():
                    worker.read(doing)
                answer = worker.answer(number)
                if answer is not None:
                    news.unregister(file)
                    del waiting[file]
                    if answer[0] == ERROR:
                        limit = min(limit, monotonic() + _GRACE)


def _deals_threads(settings: EngineSettings) -> bool:
    """Return whether the executor decides how many threads each rank has."""
    return settings.threads is None and "OMP_NUM_THREADS" not in os.environ


def shares_of_cores(count: int) -> list[list[list[int]]]:
    """Deal the cores that this process may use; return the logical processors of each core of each
    share. The shares are empty where there are not enough cores, or they are not known."""
    if not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(count)]
    cores: dict[tuple[str, ...], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        cores.setdefault(_core_of(cpu), []).append(cpu)
    each = len(cores) // count
    # neighbours share a cache, or a processor
    ordered = [cores[core] for core in sorted(cores, key=lambda core: cores[core])]
    return [ordered[rank * each : (rank + 1) * each] for rank in range(count)]


def _core_of(cpu: int) -> tuple[str, ...]:
    try:
        names = ("physical_package_id", "die_id", "core_id")
        return tuple(Path(_TOPOLOGY.format(cpu, name)).read_text().strip() for name in names)
    except OSError:
        return (str(cpu),)
