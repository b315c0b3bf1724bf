"""Component ``process``: another executor's steps, in a process of its own."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from paged_backends.executors.channel import COLLECT, ERROR, START, STEP
from paged_backends.executors.settings import ProcessSettings
from paged_backends.executors.worker_main import Started
from paged_backends.executors.worker_process import WorkerProcess
from paged_core import errors
from paged_core.engine.contexts import ExecutorContext, make_component
from paged_core.errors import EngineError, ExecutorLost, RequestError
from paged_core.interfaces.executor import Capacity, Executor, SupportsText
from paged_core.interfaces.layer import ModelSize
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.log import get_logger
from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs

_log = get_logger()


class ProcessExecutor(Executor):
    """Sends steps to a process that runs them, and may get the next one meanwhile.

    A process that dies or hangs is ``ExecutorLost``; :meth:`start` then starts another.
    """

    runs_in_background = True

    def __init__(self, options: ProcessSettings, context: ExecutorContext, /) -> None:
        inner = options.inner.options("executor", "inner", context.registry, refused=["process"])
        settings = context.settings.model_copy(update={"executor": inner})
        self._options = options
        self._context = replace(context, settings=settings, clock=None)
        self._worker: WorkerProcess | None = None
        self._started: Started | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> Capacity:
        """Start the process and its executor."""
        self.close()
        parts = self._context
        worker = self._worker = WorkerProcess(
            f"executor {parts.settings.executor.name!r}, rank {parts.rank} of {parts.size}",
            heartbeat_timeout=self._options.heartbeat_timeout,
        )
        try:
            number = worker.ask(START, pickle.dumps(parts))
            started: Started = self._answer(worker, number, "while it started", seconds=None)
        except BaseException:
            self.close()
            raise
        self._started, capacity = started, started.capacity
        sizes = {
            "num_blocks": capacity.num_blocks,
            "num_host_blocks": capacity.num_host_blocks,
            "max_model_len": capacity.max_model_len,
        }  # what memory is free may change, and the capacity may not
        self._context = replace(parts, settings=parts.settings.model_copy(update=sizes))
        _log.info(
            "process_started",
            executor=parts.settings.executor.name,
            rank=f"{parts.rank} of {parts.size}",
            pid=worker.pid,
        )
        return replace(capacity, remote=True)

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

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
        worker = self._running()
        return worker, worker.ask(STEP, pickle.dumps(step, pickle.HIGHEST_PROTOCOL))

    def collect(self, handle: Any, /) -> StepResult:
        """Wait for the result of a step."""
        worker, number = handle
        if worker is not self._running():
            raise ExecutorLost("the process that had this step has ended")
        if (
            self._started is not None
            and self._started.runs_in_background
            and number == worker.num_asked - 1
        ):
            worker.send(COLLECT)  # else the next step makes it collect this one
        result: StepResult = self._answer(
            worker, number, "in a step", seconds=self._options.step_timeout
        )
        return result

    def compile_grammar(self, form: StructuredOutputs, /) -> Future[None]:
        """Have a form compiled in the process; any thread may ask for it."""
        worker, started = self._running(), self._started
        if started is not None and started.capacity.grammars:
            return worker.grammars.compile(form)
        refused: Future[None] = Future()
        name = self._context.settings.executor.name
        refused.set_exception(RequestError(f"executor.inner {name!r} holds no output to a form"))
        return refused

    def _running(self) -> WorkerProcess:
        if self._started is None:
            raise EngineError("the executor is not running; start it first")
        if self._worker is None:
            raise ExecutorLost("its process has ended")
        return self._worker

    def _answer(
        self, worker: WorkerProcess, number: int, doing: str, *, seconds: float | None
    ) -> Any:
        """Return what was asked for, or raise what was raised in the process."""
        kind, content = worker.answer(number, doing, seconds=seconds)
        answer = pickle.loads(content)
        if kind != ERROR:
            return answer
        name, message, stack = answer
        error: errors.PagedCoreError = getattr(errors, name)(message)
        error.add_note(f"In the executor's process:\n{stack}")
        raise error
