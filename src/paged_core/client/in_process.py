"""A client whose engine runs in a thread of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

from paged_core.client.engine_client import ClientState
from paged_core.client.news import News
from paged_core.client.service import EngineService
from paged_core.client.streams import CopiedStream, StreamingClient
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine, make_front_end
from paged_core.errors import EngineError, error_text
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings


class InProcessClient(StreamingClient):
    """Builds an engine and runs it in a thread of its own.

    A long step holds the interpreter lock for parts of its time, which delays the event loop: a
    server has its engine in a process.

    Args:
        clock: of the engine, in seconds; ``None``: the executor's own, or this machine's.
    """

    def __init__(
        self,
        settings: EngineSettings,
        registry: Registry,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        self._settings, self._registry, self._engine_clock = settings, registry, clock
        self._service: EngineService | None = None
        self._started: Future[Engine] = Future()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def engine(self) -> Engine:
        """The engine, for tests and notebooks; its thread is using it."""
        return self._running().engine

    async def start(self) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = Thread(target=self._serve, name="paged_core engine", daemon=True)
            self._thread.start()
        engine = await asyncio.shield(asyncio.wrap_future(self._started))
        if self._state is ClientState.STARTING:
            self.front_end = make_front_end(
                self._settings, engine.executor, engine.capacity.max_model_len
            )
            self._state = ClientState.READY

    async def close(self) -> None:
        self._end_streams()
        if self._thread is not None:
            await asyncio.to_thread(self._stop_engine)

    def _stop_engine(self) -> None:
        assert self._thread is not None
        if self._started.exception() is None:
            self._running().close()
        self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        """Build the engine and run it, until it is closed or fails."""
        try:
            engine = build_engine(self._settings, self._registry, clock=self._engine_clock)
            self._service = EngineService(engine, self._settings, self._tell)
        except BaseException as error:  # noqa: BLE001 - start() raises it
            self._started.set_exception(error)
            return
        self._started.set_result(engine)
        try:
            self._service.run()
        except Exception as error:  # noqa: BLE001 - the requests are told
            self._post(self._fail, error_text(error))

    def _tell(self, news: News) -> None:
        self._post(self._deliver, news)

    def _post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Have something called in the event loop, unless that has ended."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, argument)
        except RuntimeError:  # the loop is closed
            if not self._loop.is_closed():
                raise

    def _fail(self, reason: str) -> None:
        if self._state is not ClientState.FAILED:
            self._state, self._reason = ClientState.FAILED, reason
        self._lose(f"the engine has stopped: {reason}", again=False)

    # ------------------------------------------------------------------ to the engine

    def _running(self) -> EngineService:
        if self._service is None:
            raise EngineError("this client has not started; await start() first")
        return self._service

    def _add(self, stream: CopiedStream) -> None:
        age = self.clock() - stream.request.arrival
        self._running().add(stream.number, stream.request, age=age)

    def _abort(self, number: int) -> None:
        self._running().abort(number)

    async def _ask(self, question: str, **arguments: Any) -> Any:
        return await asyncio.wrap_future(self._running().ask(question, **arguments))
