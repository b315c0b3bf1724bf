"""Where KV events of a vLLM come from: a file of recorded batches, or a server's ZeroMQ socket."""

from __future__ import annotations

import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from paged_core.errors import SettingsError
from paged_core.settings.documents import parse_json
from paged_plugins.decisions.kv_events import KvEvents
from paged_plugins.progress import counting
from paged_plugins.workloads.traces.files import TraceError, text_lines

MAX_BATCH = 2**26
"""Bytes: the token ids of long prompts."""


def holds_events(path: Path) -> bool:
    """Return whether a file has batches of events, by its first bytes; ``False``: unreadable."""
    begin = b""
    with suppress(OSError), path.open("rb") as file:
        begin = file.read(200).lstrip()
    return begin[:1] in (b"[", b"\x92", b"\x93") or (begin[:1] == b"{" and b'"events"' in begin)


def read_events(path: Path) -> KvEvents:
    """Read batches: MessagePack payloads as vLLM sends them, one after the other, or JSON lines.

    Raises:
        TraceError: a batch is broken; the message names its number.
        SettingsError: it needs a package that is not installed.
    """
    events = KvEvents(path)
    with path.open("rb") as file:
        is_packed = file.read(1) > b"\x7f"
    if not is_packed:
        for number, text in text_lines(path, MAX_BATCH):
            try:
                batch = parse_json(text, any_text=True)
            except ValueError as error:
                raise TraceError(path, number, f"it is not JSON: {error}") from None
            events.take(batch)
        return events
    msgpack = _imported("msgpack")
    with path.open("rb") as file:
        batches = msgpack.Unpacker(file, strict_map_key=False, max_buffer_size=MAX_BATCH)
        while True:
            try:
                batch = next(batches, None)
            except (ValueError, msgpack.UnpackException) as error:
                problem = f"it is not MessagePack: {error or type(error).__name__}"
                raise TraceError(path, events.num_batches + 1, problem) from None
            if batch is None:  # the last one may have been cut
                return events
            events.take(batch)


def receive_events(address: str, seconds: float) -> KvEvents:
    """Receive what a vLLM publishes, for so long or until Ctrl-C.

    Raises:
        SettingsError: a package is missing, there can be no such address, or nothing came.
    """
    zmq, msgpack = _imported("zmq"), _imported("msgpack")
    events, last, until = KvEvents(Path("KV events")), -1, time.monotonic() + seconds
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise SettingsError(
                f"{address!r} is no address such as tcp://host:5557: {error}"
            ) from None
        socket.subscribe(b"")
        with suppress(KeyboardInterrupt), counting("batches of KV events; Ctrl-C ends") as advance:
            while (left := until - time.monotonic()) > 0:
                if socket.poll(min(1000, left * 1000)):
                    _, number, payload = socket.recv_multipart()
                    sequence = int.from_bytes(number, "big", signed=True)
                    events.num_missed += max(0, sequence - last - 1) if last >= 0 else 0
                    last = sequence
                    events.take(msgpack.unpackb(payload, strict_map_key=False))
                    advance(1)
    if not events.num_batches:
        raise SettingsError(
            f"no event came from {address} in {seconds:g} seconds: was vLLM started with "
            '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq"}\', '
            "is this its endpoint, and was there a request?"
        )
    return events


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise SettingsError(
            "KV events are received with pyzmq and unpacked with msgpack, of which one is not "
            "installed: `pip install pyzmq msgpack`"
        ) from None
