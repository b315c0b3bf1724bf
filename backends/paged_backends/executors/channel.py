"""Messages between a process and the one that it started, over a pair of sockets.

A message is a kind (one byte), a length (eight) and so many bytes. Both sides are the same program,
and nothing else can reach the sockets, so the content may be a pickle.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress
from threading import Lock

_HEADER = struct.Struct("<cQ")
_CHUNK = 1 << 20

START, STEP, COLLECT, CLOSE, PING, COMPILE = b"I", b"S", b"C", b"Q", b"P", b"G"
"""To the process: the parts of its executor, first; a step; collect all steps; end; answer now;
on a channel of its own: compile a form."""
ANSWER, ERROR, PONG = b"A", b"E", b"O"
"""From it: one ``ANSWER`` or ``ERROR`` for the start and for each step, in order; ``PONG``."""


class Channel:
    """One end. Several threads may send; one receives.

    Args:
        seconds: after which sending gives up with ``TimeoutError``; ``None``: never.
    """

    def __init__(self, end: socket.socket, seconds: float | None = None) -> None:
        end.settimeout(seconds)
        self._socket = end
        self._buffer = bytearray()
        self._sending = Lock()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a message whole; ``OSError`` if the other end is closed."""
        with self._sending:
            self._socket.sendall(_HEADER.pack(kind, len(content)) + content)

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a message; ``EOFError`` or ``OSError`` if the other end is closed."""
        while (message := self.take()) is None:
            self.fill()
        return message

    def has_news(self, seconds: float) -> bool:
        """Wait for so long at most until :meth:`fill` would return at once."""
        return bool(self._poll.poll(max(0.0, 1000 * seconds)))

    def fill(self) -> None:
        """Take in what has come, once something has."""
        data = self._socket.recv(_CHUNK)
        if not data:
            raise EOFError("the other end is closed")
        self._buffer += data

    def take(self) -> tuple[bytes, bytes] | None:
        """Return the next message, if all of it has come."""
        if len(self._buffer) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._buffer)
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        content = bytes(memoryview(self._buffer)[_HEADER.size : end])
        del self._buffer[:end]
        return kind, content

    def fileno(self) -> int:
        """Return what can be polled for news."""
        return self._socket.fileno()

    def shut(self) -> None:
        """Let both ends read to the end, also where a thread waits for a message."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.create_server((host, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
