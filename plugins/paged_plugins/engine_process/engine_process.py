"""An engine's process as an event loop sees it: messages, signs of life, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from paged_core.errors import EngineError
from paged_core.processes.beat import Pulse
from paged_core.processes.channel import CLOSE, PING, PONG, Channel, Heartbeat
from paged_core.processes.child import Child
from paged_plugins.engine_process import wire

_PLACING = 300.0
"""Seconds that a cluster may take to find room for it, and to start it."""
_STARTING = 3600.0
"""Seconds after which it must take requests."""
_START_SILENCE = 60.0
"""Seconds that it may answer nothing before it takes requests: what it imports holds its lock."""


class EngineProcess:
    """Gives a child its orders once it is connected, and hands on what it says.

    Args:
        take: is called with each message, in this event loop.
    """

    def __init__(
        self, child: Child, orders: wire.Orders, take: Callable[[wire.FromEngine], None]
    ) -> None:
        self.last_words = ""
        """Why it ended, as it said."""
        self.child = child
        self._orders, self._take = wire.encode(orders), take
        self._loop, self._began = asyncio.get_running_loop(), monotonic()
        self._channel: Channel | None = None
        self._heartbeat: Heartbeat | None = None
        self._has_ended = asyncio.Event()
        child.connected(lambda: self._loop.call_soon_threadsafe(self._connect))

    @property
    def pid(self) -> int | None:
        """Its number on its machine; ``None``: it has not been placed yet."""
        return self.child.pid

    def _connect(self) -> None:
        try:
            self.child.meet(0.0)
        except EngineError as error:
            self.last_words = self.last_words or str(error)
            self._has_ended.set()
            return
        channel = self._channel = self.child.channels[0]
        self._heartbeat = Heartbeat(channel, _START_SILENCE)
        self._loop.add_reader(channel, self._read)
        self._send(wire.START, self._orders)

    # ------------------------------------------------------------------ messages

    def send(self, message: wire.ToEngine | bytes) -> None:
        """Send a message; one that has ended is not told."""
        encoded = message if isinstance(message, bytes) else wire.encode(message)
        self._send(wire.MESSAGE, encoded)

    def ping(self) -> None:
        """Ask it to show that it lives."""
        self._send(PING)

    def ask_to_end(self) -> None:
        """Have it end all requests, and itself."""
        self._send(CLOSE)

    def _send(self, kind: bytes, content: bytes = b"") -> None:
        if self._channel is not None:
            with suppress(OSError):  # it has ended, which is watched
                self._channel.send(kind, content)

    def _read(self) -> None:
        assert self._channel is not None and self._heartbeat is not None
        try:
            self._channel.fill()
        except (EOFError, OSError):
            self._loop.remove_reader(self._channel)
            self._has_ended.set()
            return
        self._heartbeat.heard()
        while (message := self._channel.take()) is not None:
            kind, content = message
            if kind != PONG:
                self._take(wire.decode_from_engine(content))
            elif not self.child.shares_beat:
                self.child.beat.hear(content)

    # ------------------------------------------------------------------ how it is

    def pulse(self) -> Pulse:
        """Return what it last showed of its steps."""
        return self.child.beat.read()

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended; some of what it said may not be handed on yet."""
        return self._has_ended.is_set() or self.child.has_ended

    def why_not_started(self) -> str | None:
        """Say why it is not waited for any longer before it takes requests; ``None``: it is."""
        seconds = monotonic() - self._began
        if self._heartbeat is None:
            late = f"{self.child.name} was not placed in {_PLACING:g} s: {self.child.state()}"
            return late if seconds > _PLACING else None
        with suppress(OSError):  # it has ended
            if self._heartbeat.is_missed():
                return f"{self.how_it_hangs()} while it started"
        if seconds > _STARTING:
            return f"{self.child.name} lives, and took no requests after {_STARTING:g} s"
        return None

    async def ended(self, seconds: float) -> None:
        """Return when it has ended, or after so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_ended.wait(), seconds)

    def how_it_ended(self, doing: str = "") -> str:
        """Say how it ended, while it did what, and what to do about it; it may say so itself."""
        self.hand_on_rest()
        if self.last_words:
            return f"the engine's process has stopped: {self.last_words}"
        how, remedy = self.child.how_it_ended()
        return f"{self.child.name} {how}{doing}{remedy}"

    def how_it_hangs(self) -> str:
        """Say since when it has shown no life."""
        pulse = self.pulse()
        doing = "in a step" if pulse.in_step else "between steps"
        return (
            f"{self.child.name}, in the state {self.child.state()!r}, has shown no life for "
            f"{monotonic() - pulse.at:.0f} s {doing}, and was killed"
        )

    def hand_on_rest(self) -> None:
        """Hand on what it said until now."""
        while self._channel is not None and not self._has_ended.is_set():
            if not self._channel.has_news(0.0):
                return
            self._read()

    def kill(self) -> None:
        """End the process, hand on what it said until then, and close all that leads to it."""
        self.child.kill()
        self.hand_on_rest()
        if self._channel is not None and not self._has_ended.is_set():
            self._loop.remove_reader(self._channel)
        self._has_ended.set()
        self.child.close()
