"""An engine in an actor of a Ray cluster, as :class:`ProcessClient` sees one in a process.

The messages are those of :mod:`paged_plugins.engine_process.wire`, carried by calls of the actor.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

from paged_core.cli.logs import configure_logs
from paged_core.errors import error_text
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins import ray_cluster
from paged_plugins.engine_process import wire
from paged_plugins.engine_process.beat import Beater, Pulse, SharedBeat
from paged_plugins.engine_process.client import Launch
from paged_plugins.engine_process.main import obey, serve_engine
from paged_plugins.replicas.settings import RoutedSettings

_BEAT_SECONDS = 0.5
"""How often the actor tells its beat when there is nothing else to tell."""

Batch = tuple[list[bytes], float, tuple[int, float, bool], bool]
"""What an actor tells: messages; how old its last beat is, in seconds; the rest of that beat;
whether the engine has ended."""


def unavailable_reason(options: RoutedSettings) -> str | None:
    """Return why engines cannot be placed as the options say."""
    return ray_cluster.unavailable_reason() if options.placement == "ray" else None


class Cluster:
    """The connection to the user's cluster, or one on this machine that ends with it."""

    def __init__(self) -> None:
        import ray

        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        ray_cluster.connect(
            "replicas.placement",
            os.environ.get("RAY_ADDRESS") or ray_cluster.LOCAL,
            shows_logs=True,
            remedy="; set RAY_ADDRESS to the address of its head, or unset it to start one here",
        )

    def close(self) -> None:
        """Leave it; one that was started here ends."""
        import ray

        if self._is_ours:
            ray.shutdown()


def launcher(options: RoutedSettings) -> Launch:
    """Return what starts an engine in an actor."""
    return partial(RayEngine, options)  # type: ignore[return-value]


class RayEngine:
    """One actor, what it says, and how it ended; the counterpart of ``EngineProcess``."""

    def __init__(
        self,
        options: RoutedSettings,
        settings: EngineSettings,
        registry: Registry,
        log_level: str | None,
    ) -> None:
        import ray

        self.last_words = ""
        """Why it ended, as it said."""
        self.pid: int | None = None
        """On its machine; ``None``: it has not been placed yet."""
        self._pulse = Pulse(0, time.monotonic(), 0.0, in_step=False)
        self._inbox: list[bytes] = []
        self._take: Callable[[wire.FromEngine], None] | None = None
        self._has_ended = asyncio.Event()
        self._how = "has ended"
        make = ray.remote(_EngineActor).options(
            num_cpus=options.cpus, num_gpus=options.gpus, scheduling_strategy="SPREAD"
        )
        blocked = [each.name for each in registry.plugins if each.status == "blocked"]
        self._actor = make.remote(settings.model_dump(mode="json"), blocked, log_level)
        self._receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        """Take what the actor tells, until it has ended."""
        import ray

        try:
            self.pid = await self._actor.start.remote()
            is_over = False
            while not is_over:
                batch: Batch = await self._actor.tell.remote()
                messages, age, (number, estimate, in_step), is_over = batch
                self._pulse = Pulse(number, time.monotonic() - age, estimate, in_step)
                self._inbox += messages
                self.take_rest()
        except ray.exceptions.RayError as error:
            self._how = f"was lost: {error_text(error).partition(chr(10))[0]}"
        self._has_ended.set()

    # ------------------------------------------------------------------ messages

    def send(self, message: bytes) -> None:
        if not self.has_ended:
            self._actor.hear.remote(message)

    def messages(self) -> Iterator[wire.FromEngine]:
        """Yield what has come."""
        inbox, self._inbox = self._inbox, []
        yield from map(wire.decode_from_engine, inbox)

    def listen(self, take: Callable[[wire.FromEngine], None]) -> None:
        """Call ``take`` with each message that comes from now on."""
        self._take = take
        self.take_rest()

    def take_rest(self) -> None:
        """Take what it has said."""
        if self._take is not None:
            for message in self.messages():
                self._take(message)

    def forget_folder(self) -> None:
        """There is none: the cluster connects the two."""

    # ------------------------------------------------------------------ how it is

    def pulse(self) -> Pulse:
        return self._pulse

    @property
    def has_ended(self) -> bool:
        return self._has_ended.is_set()

    async def ended(self, seconds: float) -> None:
        """Return when it has ended, or after so many seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_ended.wait(), seconds)

    def how_it_ended(self) -> str:
        if self.last_words:
            return f"has stopped: {self.last_words}"
        return f"(pid {self.pid}, an actor of Ray) {self._how}"

    def how_it_hangs(self) -> str:
        silent = time.monotonic() - self._pulse.at
        return (
            f"the engine's process (pid {self.pid}, an actor of Ray) has shown no life for "
            f"{silent:.0f} s, and was killed"
        )

    def kill(self) -> None:
        """End the actor."""
        import ray

        self._receiving.cancel()
        self._has_ended.set()
        with suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


class _EngineActor:
    """The engine, in a thread of the actor's process."""

    def __init__(self, settings: dict[str, Any], blocked: list[str], log_level: str | None) -> None:
        self._settings, self._blocked = settings, blocked
        configure_logs(log_level, os.environ)
        self._beat = SharedBeat()
        self._outbox: list[bytes] = []
        self._is_over = False

    async def start(self) -> int:
        """Start the engine; return the number of this process."""
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._beater = Beater(self._beat)
        self._service: Any = None
        Thread(target=self._run, name="paged_core engine", daemon=True).start()
        return os.getpid()

    async def hear(self, message: bytes) -> None:
        """Do what a message asks."""
        if self._service is None:
            return
        asked = wire.decode_to_engine(message)
        if isinstance(asked, wire.Close):
            await asyncio.to_thread(self._service.close)
        else:
            obey(asked, self._service, self._send)

    async def tell(self) -> Batch:
        """Return what there is to tell, or after a while the beat alone."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), _BEAT_SECONDS)
        self._news.clear()
        is_over = self._is_over
        outbox, self._outbox = self._outbox, []
        pulse = self._beat.read()
        age = time.monotonic() - pulse.at
        return outbox, age, (pulse.count, pulse.estimate, pulse.in_step), is_over

    def _run(self) -> None:
        try:
            serve_engine(self._settings, self._blocked, self._send, self._beater, self._begin)
        except BaseException as error:  # noqa: BLE001 - the front end is told, whatever it was
            self._send(wire.Failed(wire.named_error(error)))
        self._is_over = True
        self._wake()

    def _begin(self, service: Any) -> None:
        self._service = service

    def _send(self, message: wire.FromEngine) -> None:
        encoded = wire.encode(message)
        if len(encoded) > wire.MOST:
            raise wire.TooLarge(f"{len(encoded)} bytes, and {wire.MOST} can be sent at once")
        self._outbox.append(encoded)
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the process is about to
            self._loop.call_soon_threadsafe(self._news.set)
