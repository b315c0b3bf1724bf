"""Main function of the engine's process: it owns model, scheduler and cache, and waits for none.

It ends when it is told to, and at once when the process that started it has ended.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from paged_core.cli.logs import configure_logs
from paged_core.client.news import News, Refusal
from paged_core.client.service import EngineService
from paged_core.engine.wiring import build_engine
from paged_core.errors import RequestError
from paged_core.plugins.registry import Registry
from paged_core.processes.beat import Beater
from paged_core.processes.channel import CLOSE
from paged_core.processes.child_main import Parent
from paged_core.processes.failures import named_error
from paged_core.settings.schema import settings_class
from paged_plugins.engine_process import wire


def main(parent: Parent) -> None:
    """Serve until told to end."""
    engine = _EngineMain(parent)
    parent.wake = engine.wake
    Thread(target=engine.hear, name="paged_core messages", daemon=True).start()
    try:
        engine.serve()
    except BaseException as error:  # noqa: BLE001 - the front end is told, whatever it was
        engine.send(wire.Failed(named_error(error)))


class _EngineMain:
    """Builds an engine as it is ordered, and does what messages ask of it."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._orders: SimpleQueue[wire.Orders] = SimpleQueue()
        self._service: EngineService | None = None

    def serve(self) -> None:
        """Build the engine, and run it until it is closed."""
        orders = self._orders.get()
        configure_logs(orders.log_level, os.environ)
        registry = Registry.discover(block=orders.blocked)
        settings = settings_class(registry)(**orders.settings)
        engine = build_engine(settings, registry)
        beater = Beater(self._parent.beat)
        service = EngineService(engine, settings, self._tell, between_steps=beater)
        self._service = service
        found = engine.capacity
        self.send(wire.Ready(found.num_blocks, found.num_host_blocks, found.max_model_len))
        try:
            service.run()
        finally:
            service.close()

    # ------------------------------------------------------------------ messages

    def send(self, message: wire.FromEngine) -> None:
        """Send to the front end; any thread may, and none waits for it."""
        self._parent.channels[0].send(wire.MESSAGE, wire.encode(message))

    def _tell(self, news: News) -> None:
        self.send(wire.Told(news))

    def wake(self) -> None:
        """Have the thread that runs the steps show that it lives."""
        if self._service is not None:
            self._service.wake()

    def hear(self) -> None:
        """Do what messages ask, until one tells to end."""
        kind = b""
        while kind != CLOSE:
            kind, content = self._parent.messages.get()
            self._take(kind, content)

    def _take(self, kind: bytes, content: bytes) -> None:
        """Do what a message asks; only to close waits for anything."""
        if kind == wire.START:
            self._orders.put(wire.decode_orders(content))
        elif self._service is None:  # nothing is asked of an engine that is not ready but to end
            os._exit(0)
        elif kind == CLOSE:
            self._service.close()
        else:
            self._obey(wire.decode_to_engine(content), self._service)

    def _obey(self, message: wire.ToEngine, service: EngineService) -> None:
        match message:
            case wire.Add() as add:
                try:
                    service.add(add.number, wire.added_request(add), age=add.age)
                except RequestError as error:
                    self._tell(News(refused=[Refusal.of(add.number, error)]))
            case wire.Abort(number):
                service.abort(number)
            case wire.Ask(question, name, arguments):
                asked = service.ask(name, **arguments)
                asked.add_done_callback(partial(self._answer, question))

    def _answer(self, question: int, done: Future[Any]) -> None:
        error = done.exception()
        try:
            if error is None:
                self.send(wire.Answer(question, done.result()))
                return
        except Exception as raised:  # noqa: BLE001 - an observer may report anything
            error = raised
        self.send(wire.Answer(question, error=named_error(error)))
