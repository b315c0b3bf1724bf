"""A client whose engine has a process of its own, which is started again when it is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from paged_core.client.engine_client import ClientHealth, ClientState
from paged_core.client.streams import SHUTTING_DOWN, CopiedStream, Owner, StreamingClient
from paged_core.engine.contexts import ExecutorContext, Maker
from paged_core.engine.outcome import EngineMetrics
from paged_core.engine.wiring import make_front_end
from paged_core.errors import EngineError, EngineLost, SettingsError, error_text
from paged_core.interfaces.executor import Executor
from paged_core.log import get_logger
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.processes.child import Child, PythonChild
from paged_core.processes.failures import named_error, raised
from paged_core.settings.schema import EngineSettings
from paged_core.text.front_end import FrontEnd
from paged_plugins.engine_process import wire
from paged_plugins.engine_process.backoff import Backoff
from paged_plugins.engine_process.engine_process import EngineProcess
from paged_plugins.engine_process.kept_pins import KeptPins

_START_LOOK_SECONDS = 0.02
_LOOK_SECONDS = 0.25
"""Seconds between two looks at the process, while it starts and then."""
_PING_SECONDS = 1.0
"""Seconds between two requests for a beat."""
_CLOSE_SECONDS = 5.0
"""Seconds that it may take to end when it is told to."""

TARGET, NAME = "paged_plugins.engine_process.main:main", "the engine's process"

_log = get_logger()


class ProcessClient(StreamingClient):
    """Starts the engine's process, watches its beat, and starts another when it is lost.

    A request of whose answer nothing was read is then served again; others end with ``EngineLost``.
    With an owner it starts no other, and hands back what can be served again.

    Args:
        registry: what is installed, some of it blocked; parts of this program alone cannot be sent.
        hang_seconds: a process that shows no life for this long, beyond what it expected of its
            step, is killed.
        log_level: of its log, which goes to standard error.
        launch: starts the engine's process; ``None``: on this machine.

    Raises:
        SettingsError: the registry has parts that are not installed.
    """

    def __init__(
        self,
        settings: EngineSettings,
        registry: Registry,
        *,
        hang_seconds: float = 10.0,
        log_level: str | None = None,
        owner: Owner | None = None,
        launch: Callable[[], Child] | None = None,
    ) -> None:
        super().__init__(owner)
        ours = [each.name for each in registry.plugins if each.distribution == "this program"]
        if ours:
            raise SettingsError(
                f"the plugins {', '.join(ours)} are parts of this program, and the engine's "
                "process knows only what is installed; install them, or serve in this process"
            )
        self._settings, self._registry = settings, registry
        self._hang_seconds, self._log_level = hang_seconds, log_level
        self._launch, self._backoff = launch or _local_child, Backoff()
        self._process: EngineProcess | None = None
        self._ready: asyncio.Future[wire.Ready] | None = None
        """Answer of the process that is being started."""
        self._questions = count()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._pins = KeptPins(self.clock)
        self._watching: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None

    @property
    def settings(self) -> EngineSettings:
        """Settings of the engine; once it has started, with the sizes that it found."""
        return self._settings

    @property
    def is_ready(self) -> bool:
        """Return whether requests are taken."""
        return self.health().state is ClientState.READY

    @property
    def pid(self) -> int | None:
        """The engine's process; ``None``: there is none at the moment."""
        return None if self._process is None else self._process.pid

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_first())
        await asyncio.shield(self._starting)

    async def _start_first(self) -> None:
        try:
            ready = await self._start_process()
            if self._owner is None:
                self.front_end = await asyncio.to_thread(
                    distant_front_end, self._settings, self._registry, ready.max_model_len
                )
        except BaseException as error:
            self._state, self._reason = ClientState.FAILED, str(error)
            process, self._process = self._process, None
            if process is not None:
                process.kill()
            raise
        sizes = {
            "num_blocks": ready.num_blocks,
            "num_host_blocks": ready.num_host_blocks,
            "max_model_len": ready.max_model_len,
        }  # what memory is free may change, and what was promised may not
        self._settings = self._settings.model_copy(update=sizes)
        if self._state is ClientState.STARTING:
            self._state = ClientState.READY
        self._backoff.is_ready()
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(self._watched)

    async def _start_process(self) -> wire.Ready:
        """Start a process and wait until it takes requests.

        Raises:
            PagedCoreError: what it raised, or that it ended.
        """
        loop = asyncio.get_running_loop()
        ready = self._ready = loop.create_future()
        blocked = [each.name for each in self._registry.plugins if each.status == "blocked"]
        orders = wire.Orders(self._settings.model_dump(mode="json"), blocked, self._log_level)
        process = self._process = EngineProcess(self._launch(), orders, self._take)
        try:
            while not ready.done():
                await process.ended(_START_LOOK_SECONDS)
                self._end_overdue()
                if process.has_ended:
                    how = process.how_it_ended(" while it started")
                    if ready.done():  # its last words
                        break
                    raise EngineError(how)
                if (why := process.why_not_started()) is not None:
                    raise EngineError(why)
            found: wire.Ready = ready.result()
            _log.info("engine_started", pid=process.pid)
            return found
        except BaseException:
            self._process = None
            process.kill()
            raise

    async def close(self) -> None:
        self._end_streams()
        for task in (self._watching, self._starting):
            if task is not None and not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        process, self._process = self._process, None
        if process is not None:
            process.ask_to_end()
            await process.ended(_CLOSE_SECONDS)
            process.kill()
        self._fail_questions("it is closed")

    async def _watch(self) -> None:
        """Start another process whenever one has ended or hangs, or hand over to the owner."""
        while True:
            try:
                reason = await self._loss()
            except Exception as error:  # noqa: BLE001 - what is not watched is as good as lost
                reason = f"{NAME} cannot be watched: {error_text(error)}"
            if self._owner is not None:
                self._hand_back(self._owner, reason)
                return
            if not await self._restart(reason):
                return

    def _watched(self, watching: asyncio.Task[None]) -> None:
        """Nothing watches the engine any more: if that is a fault, nothing is to wait for it."""
        if watching.cancelled() or (error := watching.exception()) is None:
            return
        _log.error("engine_not_watched", reason=error_text(error), exc_info=error)
        self._state, self._reason = ClientState.FAILED, f"nothing watches it: {error_text(error)}"
        self._lose(self._reason, again=False)
        self._fail_questions(self._reason)

    async def _loss(self) -> str:
        """Look at the process again and again; return how it has ended, or that it hangs."""
        process, pinged = self._process, -_PING_SECONDS
        assert process is not None
        asked: float | None = None  # when it was first pinged since its last beat
        while True:
            await process.ended(_LOOK_SECONDS)
            now, pulse = self.clock(), process.pulse()
            if asked is not None and pulse.at >= asked:
                asked = None
            silent = pulse.overdue if pulse.in_step else 0.0 if asked is None else now - asked
            if process.has_ended:
                return process.how_it_ended()
            if silent > self._hang_seconds:
                return process.how_it_hangs()
            if now - pinged > _PING_SECONDS:
                pinged, asked = now, now if asked is None else asked
                process.ping()

    async def _restart(self, reason: str) -> bool:
        """Start another process in place of a lost one; whether that was done."""
        kept = self._drop(reason, ClientState.RESTARTING)
        while (pause := self._backoff.pause()) is not None:
            await self._pause(pause)
            try:
                await self._start_process()
                self._backoff.is_ready()
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                why = named_error(error)[1]
                _log.error("engine_not_started", reason=why)
                self._reason = f"{reason}; and starting another failed: {why}"
        else:
            self._state = ClientState.FAILED
            self._lose(f"the engine is given up: {self._reason}", again=False)
            return False
        if self._state is ClientState.DRAINING:
            self._reason = SHUTTING_DOWN
        else:
            self._state, self._reason = ClientState.READY, None
        self._pins.joined(self)
        for stream in kept:
            if not stream.has_ended:
                self._add(stream)
        return True

    async def _pause(self, seconds: float) -> None:
        until = self.clock() + seconds
        while (left := until - self.clock()) > 0:
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            self._end_overdue()

    def _end_overdue(self) -> None:
        """End requests whose deadline passes while there is no engine that would end them."""
        now = self.clock()
        for stream in list(self._streams.values()):
            deadline = stream.request.deadline
            if deadline is not None and deadline < now:
                stream.fail(EngineLost(f"its deadline passed, and no engine runs: {self._reason}"))
                self._forget(stream)

    def _drop(self, reason: str, state: ClientState) -> list[CopiedStream]:
        """Let go of a lost process; return the requests that can be served again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        if self._state is not ClientState.DRAINING or state is ClientState.FAILED:
            self._state = state
        self._reason = reason
        kept = self._lose(reason, again=True)
        self._fail_questions(reason)
        _log.error("engine_lost", reason=reason, served_again=[each.request.id for each in kept])
        return kept

    def _hand_back(self, owner: Owner, reason: str) -> None:
        """Let go of a lost process, and have what can be served again served elsewhere."""
        kept = self._drop(reason, ClientState.FAILED)
        for stream in kept:
            self._forget(stream)
        owner.lost(kept, reason)

    def health(self) -> ClientHealth:
        health = super().health()
        if self._process is None:
            return health
        silent_for = max(0.0, self.clock() - self._process.pulse().at)
        if health.state is ClientState.READY and self._process.has_ended:  # and not yet noticed
            reason = self._process.how_it_ended()
            health = replace(health, state=ClientState.RESTARTING, reason=reason)
        return replace(health, silent_for=silent_for)

    # ------------------------------------------------------------------ messages

    def _take(self, message: wire.FromEngine) -> None:
        match message:
            case wire.Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case wire.Told(news):
                self._deliver(news)
            case wire.Answer(question, value, error):
                answer = self._answers.pop(question, None)
                if answer is not None and not answer.done():
                    if error is None:
                        answer.set_result(value)
                    else:
                        answer.set_exception(raised(error))
            case wire.Failed(error):
                if self._ready is not None and not self._ready.done():
                    self._ready.set_exception(raised(error))
                elif self._process is not None:
                    self._process.last_words = error[1]

    def _add(self, stream: CopiedStream) -> None:
        message = wire.add_message(stream.number, stream.request, self.clock())
        if self._process is not None:
            self._process.send(message)

    def _abort(self, number: int) -> None:
        if self._process is not None:
            self._process.send(wire.Abort(number))

    async def _ask(self, question: str, **arguments: Any) -> Any:
        if self._process is None or self._state not in (ClientState.READY, ClientState.DRAINING):
            raise EngineError(f"the engine cannot be asked: {self._reason or self._state.value}")
        number = next(self._questions)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._process.send(wire.Ask(number, question, arguments))
        return await answer

    async def metrics(self) -> EngineMetrics:
        return EngineMetrics(**await self._ask("metrics"))

    hold, let_go = StreamingClient.pin, StreamingClient.release
    # of the present engine: its ids are another one's when it is started again

    async def pin(
        self, tokens: Sequence[int], /, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> str:
        """Keep a prefix in the engine's cache, also when the engine is started again."""
        return await self._pins.pin([self], tokens, ttl, cache_salt)

    async def release(self, pin: str, /) -> None:
        await self._pins.release(pin)

    def _fail_questions(self, reason: str) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(EngineError(reason))


def _local_child() -> Child:
    """Start a process of this machine; what it prints goes where its log goes."""
    return PythonChild(TARGET, name=NAME, stdout=_descriptor_of(sys.stderr))


def _descriptor_of(stream: Any) -> int | None:
    try:
        number: int = stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number if number >= 0 else None


def distant_front_end(settings: EngineSettings, registry: Registry, max_model_len: int) -> FrontEnd:
    """Read the tokenizer in this process, of an engine that is in another one."""
    context = ExecutorContext(
        settings=settings,
        registry=registry,
        needs_host_blocks=False,
        maker=Maker(settings, registry),
    )
    executor: Executor = make_component(registry, "executor", settings.executor, context)
    return make_front_end(settings, executor, max_model_len)
