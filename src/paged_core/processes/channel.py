"""Messages between a process and the one that it started, over a pair of sockets.

A message is a kind (one byte), a length (eight) and so many bytes. Nothing else can reach the
sockets, so what the bytes mean is for the two ends to say. A socket may be made non-blocking by the
event loop that watches it, so nothing here counts on its mode.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from contextlib import suppress
from threading import Condition, Thread
from time import monotonic

_HEADER = struct.Struct("<cQ")
_CHUNK = 1 << 20

PING, PONG, CLOSE, ANSWER, ERROR = b"P", b"O", b"Q", b"A", b"E"
"""To a child: show that you live; from it: its beat. To it: end. From it, for what it was asked:
an answer, or what :func:`~paged_core.processes.failures.told` makes of an error."""


class Channel:
    """One end. Several threads may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._buffer = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._sent = Condition()
        self._poll, self._room = select.poll(), select.poll()
        self._poll.register(end, select.POLLIN)
        self._room.register(end, select.POLLOUT)

    # ------------------------------------------------------------------ sending

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a message, and do not wait: a thread sends what the system does not take at once.

        Raises:
            OSError: the other end is closed.
        """
        message = memoryview(_HEADER.pack(kind, len(content)) + content)
        with self._sent:
            if self._unsent:
                self._unsent.append(message)
                return
            try:
                num_sent = self._socket.send(message, socket.MSG_DONTWAIT)
            except BlockingIOError:
                num_sent = 0
            if num_sent < len(message):
                self._unsent.append(message[num_sent:])
                try:
                    Thread(target=self._send_rest, name="paged_core channel", daemon=True).start()
                except RuntimeError as error:  # no more threads: half a message ends the channel
                    self._unsent.clear()
                    self.shut()
                    raise OSError(f"the rest of a message cannot be sent: {error}") from error

    def _send_rest(self) -> None:
        while True:
            with self._sent:
                if not self._unsent:
                    self._sent.notify_all()
                    return
                message = self._unsent[0]
            self._room.poll()
            try:
                num_sent = self._socket.send(message, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:  # the other end is closed, which the next one to use this sees
                with self._sent:
                    self._unsent.clear()
                    continue
            with self._sent:
                self._unsent.popleft()
                if num_sent < len(message):
                    self._unsent.appendleft(message[num_sent:])

    def flush(self, seconds: float) -> bool:
        """Wait until the system has taken all that was sent; return whether it has."""
        with self._sent:
            return self._sent.wait_for(lambda: not self._unsent, seconds)

    # ------------------------------------------------------------------ receiving

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a message; ``EOFError`` or ``OSError`` if the other end is closed."""
        while (message := self.take()) is None:
            self._poll.poll()
            self.fill()
        return message

    def receive_within(self, seconds: float) -> tuple[bytes, bytes]:
        """Wait for a message as :meth:`receive`; ``TimeoutError`` if none comes in time."""
        deadline = monotonic() + seconds
        while (message := self.take()) is None:
            if not self.has_news(deadline - monotonic()):
                raise TimeoutError(f"nothing has come for {seconds:g} s")
            self.fill()
        return message

    def has_news(self, seconds: float) -> bool:
        """Wait for so long at most until :meth:`fill` would return at once."""
        return bool(self._poll.poll(max(0.0, 1000 * seconds)))

    def fill(self) -> None:
        """Take in what has come; ``EOFError`` or ``OSError`` if the other end is closed."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
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
        """Return what can be polled for news; negative once it is closed."""
        return self._socket.fileno()

    def shut(self) -> None:
        """Let both ends read to the end, also where a thread waits for a message."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; the other one reads what was sent, and then its end."""
        self._socket.close()


class Heartbeat:
    """Finds whether the other end of a channel lives while it is silent: it is asked, and answers.

    Args:
        timeout: seconds in which it must answer.
    """

    def __init__(self, channel: Channel, timeout: float) -> None:
        self._channel, self.timeout = channel, timeout
        self.patience = min(1.0, timeout)
        """Seconds to wait for news before it is asked."""
        self.heard()

    def heard(self) -> None:
        """Begin to count its silence: something has come from it, or nothing is awaited."""
        self._heard, self._asked = monotonic(), None

    _asked: float | None

    def is_missed(self) -> bool:
        """Ask for a sign of life if there was none for long; return whether none came in time.

        Raises:
            OSError: the other end is closed.
        """
        now = monotonic()
        if self._asked is not None:
            return now - self._asked > self.timeout
        if now - self._heard > self.patience / 2:
            self._channel.send(PING)
            self._asked = monotonic()
        return False


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.create_server((host, 0)) as listening:
        port: int = listening.getsockname()[1]
    return port
