"""Executors whose steps run in workers: what those in one process and those of ranks share."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from paged_backends.executors.channel import COLLECT, ERROR, START, STEP
from paged_backends.executors.settings import RemoteSettings
from paged_backends.executors.worker import Worker, wait_for
from paged_backends.executors.worker_main import Started
from paged_core import errors
from paged_core.engine.contexts import ExecutorContext, make_component
from paged_core.errors import EngineError, ExecutorLost, PagedCoreError, RequestError
from paged_core.interfaces.executor import Capacity, Executor, SupportsText
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.log import get_logger
from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs

_log = get_logger()


class RemoteExecutor(Executor):
    """Sends each step to all workers, and may get the next one meanwhile; the first one's result
    counts.

    If one is lost, all are ended, which is ``ExecutorLost``; :meth:`start` then starts others.
    """

    runs_in_background = True

    def __init__(self, options: RemoteSettings, context: ExecutorContext, /) -> None:
        refused = ["process", "tensor_parallel"]
        inner = options.inner.options("executor", "inner", context.registry, refused=refused)
        settings = context.settings.model_copy(update={"executor": inner})
        self._context = replace(context, settings=settings, clock=None)
        self._step_timeout = options.step_timeout
        self._workers: list[Worker] = []
        self._started: Started | None = None
        self._is_cut = False
        """Whether some workers got a message, and others perhaps not."""

    @abstractmethod
    def _start_workers(self, workers: list[Worker]) -> Sequence[ExecutorContext]:
        """Append workers as they are started; return the parts of the executor of each."""

    def _name(self, rank: int, size: int) -> str:
        """Return the name of a worker, for errors."""
        return f"executor {self._context.settings.executor.name!r}, rank {rank} of {size}"

    # ------------------------------------------------------------------ life

    def start(self) -> Capacity:
        """Start the workers and their executors."""
        self._end_workers()
        self._is_cut = False
        try:
            parts = self._start_workers(self._workers)
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

    def _end_workers(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.ask_to_end()
        for worker in workers:
            worker.close()

    def _kill(self) -> None:
        for worker in self._workers:
            worker.kill()

    def model_size(self) -> ModelSize | None:
        """Return the size of the model; ``None`` before the start, or if it is not known."""
        return None if self._started is None else self._started.model_size

    def tokenizer(self) -> Tokenizer | None:
        """Return what the other executor's model has; it is read in this process."""
        parts = self._context
        inner = make_component(parts.registry, "executor", parts.settings.executor, parts)
        return inner.tokenizer() if isinstance(inner, SupportsText) else None

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
        result: StepResult = self._answers(number, "in a step", seconds=self._step_timeout)[0]
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

    def _send(self, kind: bytes, content: bytes = b"") -> int:
        """Send the same to all workers; return the number of a step's answer."""
        if self._is_cut:
            self._kill()
            raise ExecutorLost("the ranks were ended, because Ctrl-C came while they were sent to")
        self._is_cut = True
        number = 0
        try:
            for worker in self._workers:
                if kind == STEP:
                    number = worker.ask(kind, content)
                else:
                    worker.send(kind, content)
        except ExecutorLost:
            self._kill()
            raise
        self._is_cut = False
        return number

    def _answers(self, number: int, doing: str, *, seconds: float | None) -> list[Any]:
        """Return what was asked for, or raise what was raised in all workers.

        Raises:
            ExecutorLost: a worker is lost, or some have raised and others not: they are no longer
                at the same place.
        """
        workers = self._workers
        try:
            answers = wait_for(workers, number, doing, seconds=seconds)
        except ExecutorLost:
            self._kill()
            raise
        raised = [
            (worker, _error_of(answer[1]))
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


def _error_of(content: bytes) -> PagedCoreError:
    name, message, stack = pickle.loads(content)
    error: PagedCoreError = getattr(errors, name)(message)
    error.add_note(f"In the executor's process:\n{stack}")
    return error
