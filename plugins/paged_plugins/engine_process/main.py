"""The engine's process: it owns model, scheduler and cache, and never waits for a front end.

It ends when it is told to, and at once when the process that started it has ended.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any

import msgspec
import zmq

from paged_core.cli.logs import configure_logs
from paged_core.client.news import News
from paged_core.client.service import EngineService
from paged_core.engine.wiring import build_engine
from paged_core.errors import RequestError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class
from paged_plugins.engine_process import wire
from paged_plugins.engine_process.beat import Beater, SharedBeat

_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's ``prctl``."""


class Orders(msgspec.Struct):
    """What the process is started with."""

    parent: int
    control: int
    """Descriptor of a socket that is closed when the process that started this one ends."""
    beat: int
    folder: str
    """Of the sockets ``in`` and ``out``, as seen from here."""
    settings: dict[str, Any]
    blocked: list[str]
    log_level: str | None


class _Sender:
    """Sends to the front end; any thread may."""

    def __init__(self, context: zmq.Context[Any], folder: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # it holds what running requests gain, at most
        self._socket.setsockopt(zmq.LINGER, 1000)
        _connect(self._socket, f"ipc://{folder}/out")
        self._lock = Lock()

    def __call__(self, message: wire.FromEngine) -> None:
        encoded = wire.encode(message)
        if len(encoded) > wire.MOST:
            raise wire.TooLarge(f"{len(encoded)} bytes, and {wire.MOST} can be sent at once")
        with self._lock:
            self._socket.send(encoded)

    def close(self) -> None:
        with self._lock:
            self._socket.close()


def main() -> None:
    """Serve until told to end; the orders come as JSON on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    orders = msgspec.json.decode(sys.stdin.buffer.read(), type=Orders)
    Thread(target=_watch, args=(orders,), daemon=True).start()
    context = zmq.Context()
    send = _Sender(context, orders.folder)
    status = 0
    try:
        configure_logs(orders.log_level, os.environ)
        _serve(orders, context, send)
    except BaseException as error:  # noqa: BLE001 - the front end is told, whatever it was
        send(wire.Failed(wire.named_error(error)))
        status = 1
    send.close()
    context.destroy(linger=1000)
    os._exit(status)  # threads of libraries are not waited for


def _serve(orders: Orders, context: zmq.Context[Any], send: _Sender) -> None:
    reader = context.socket(zmq.PULL)
    reader.setsockopt(zmq.MAXMSGSIZE, wire.MOST)
    reader.setsockopt(zmq.RCVHWM, 0)

    def begin(service: EngineService) -> None:
        _connect(reader, f"ipc://{orders.folder}/in")
        shutil.rmtree(orders.folder, ignore_errors=True)  # both sides are connected
        _die_with(orders.parent)  # nothing is left that only `_watch` would remove
        arguments = (reader, service, send)
        Thread(target=_read, args=arguments, name="paged_core messages", daemon=True).start()

    beater = Beater(SharedBeat(orders.beat))
    serve_engine(orders.settings, orders.blocked, send, beater, begin)


def serve_engine(
    settings: dict[str, Any],
    blocked: list[str],
    send: Callable[[wire.FromEngine], None],
    beater: Beater,
    begin: Callable[[EngineService], None],
) -> None:
    """Build an engine and serve with it, until it is told to end.

    Args:
        begin: called once it can be asked, before the front end is told so.
    """
    registry = Registry.discover(block=blocked)
    made = settings_class(registry)(**settings)
    engine = build_engine(made, registry)
    service: EngineService

    def tell(news: News) -> None:
        wire.tell(news, send, service.abort)

    service = EngineService(engine, made, tell, between_steps=beater)
    begin(service)
    capacity = engine.capacity
    send(wire.Ready(capacity.num_blocks, capacity.num_host_blocks, capacity.max_model_len))
    try:
        service.run()
    finally:
        service.close()


def _connect(end: zmq.Socket[bytes], address: str) -> None:
    """Connect to a socket of the front end, and wait until that is done."""
    connected = end.get_monitor_socket(zmq.EVENT_CONNECTED)
    end.connect(address)
    connected.recv_multipart()
    end.disable_monitor()


def _read(reader: zmq.Socket[bytes], service: EngineService, send: _Sender) -> None:
    """Hand on what the front end asks, and end the engine when that is asked."""
    while True:
        message = wire.decode_to_engine(reader.recv())
        obey(message, service, send)
        if isinstance(message, wire.Close):
            return


def obey(
    message: wire.ToEngine, service: EngineService, send: Callable[[wire.FromEngine], None]
) -> None:
    """Do what a message asks; only to close waits for anything."""
    match message:
        case wire.Add() as add:
            try:
                service.add(add.number, wire.added_request(add), age=add.age)
            except RequestError as error:
                send(wire.Told(News(refused=[(add.number, str(error), False)])))
        case wire.Abort(number):
            service.abort(number)
        case wire.Ask(question, name, arguments):
            service.ask(name, **arguments).add_done_callback(partial(_answer, send, question))
        case wire.Ping():
            service.wake()
        case wire.Close():
            service.close()


def _answer(send: Callable[[wire.FromEngine], None], question: int, done: Future[Any]) -> None:
    error = done.exception()
    try:
        if error is None:
            send(wire.Answer(question, done.result()))
            return
    except Exception as raised:  # noqa: BLE001 - an observer may report anything
        error = raised
    send(wire.Answer(question, error=wire.named_error(error)))


def _watch(orders: Orders) -> None:
    """End when the process that started this one has, and leave nothing of its sockets."""
    with socket.socket(fileno=orders.control) as control, suppress(OSError):
        control.recv(1)
    shutil.rmtree(orders.folder, ignore_errors=True)
    os._exit(1)


def _die_with(parent: int) -> None:
    """Have the system end this process with its parent, also while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
