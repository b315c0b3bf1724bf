"""Prefixes that engines keep in their caches, also one that is started later, or again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from paged_core.errors import EngineError, PagedCoreError, RequestError
from paged_core.log import get_logger

_log = get_logger()


class PinningEngine(Protocol):
    """An engine that holds pins."""

    @property
    def is_ready(self) -> bool:
        """Return whether it takes requests."""
        ...

    async def hold(
        self, tokens: Sequence[int], /, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> str:
        """Pin a prefix; return the id of the pin, in this engine."""
        ...

    async def let_go(self, pin: str, /) -> None:
        """End a pin, by its id in this engine."""
        ...


@dataclass(slots=True, eq=False)
class _KeptPin:
    tokens: Sequence[int]
    cache_salt: str | None
    until: float | None
    """On the clock of :class:`KeptPins`; ``None``: it is held until it is released."""
    held: dict[PinningEngine, str] = field(default_factory=dict)
    """By which engines, under which ids."""


class KeptPins:
    """Pins of one engine or several, under one name for all that lasts longer than an engine."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pins: dict[str, _KeptPin] = {}
        self._numbers = count()
        self._working: set[asyncio.Task[None]] = set()

    async def pin(
        self,
        engines: Sequence[PinningEngine],
        tokens: Sequence[int],
        ttl: float | None,
        cache_salt: str | None,
    ) -> str:
        """Pin a prefix in all of these engines, or in none; return the name of the pin.

        One of several that is lost meanwhile holds it when it is started again.

        Raises:
            RequestError, EngineError: one of them cannot.
        """
        self._forget_expired()
        until = None if ttl is None else self._clock() + ttl
        name, pin = f"pin-{next(self._numbers)}", _KeptPin(tuple(tokens), cache_salt, until)
        self._pins[name] = pin  # before it is held: another engine may join meanwhile
        holding = (self._hold(name, pin, each) for each in engines)
        try:
            found = await asyncio.gather(*holding, return_exceptions=True)
        except asyncio.CancelledError:
            self._work(self._end(self._pins.pop(name)))
            raise
        errors = [
            error
            for engine, error in zip(engines, found, strict=True)
            if error is not None and (engine.is_ready or not pin.held)
        ]
        if errors:
            await self._end(self._pins.pop(name))
            raise errors[0]
        return name

    def joined(self, engine: PinningEngine) -> None:
        """Have an engine hold what the others hold, or what it held before it was lost."""
        self._forget_expired()
        for name, pin in self._pins.items():
            pin.held = {
                each: held
                for each, held in pin.held.items()
                if each is not engine and each.is_ready
            }
            self._work(self._hold_again(name, pin, engine))

    async def release(self, name: str) -> None:
        """End a pin.

        Raises:
            RequestError: there is none of that name.
        """
        self._forget_expired()
        if name not in self._pins:
            raise RequestError(f"there is no pin {name!r}")
        await self._end(self._pins.pop(name))

    async def _end(self, pin: _KeptPin) -> None:
        ending = (each.let_go(held) for each, held in pin.held.items() if each.is_ready)
        for found in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(found, BaseException) and not isinstance(found, EngineError):
                raise found

    async def _hold(self, name: str, pin: _KeptPin, engine: PinningEngine) -> None:
        left = None if pin.until is None else max(0.001, pin.until - self._clock())
        held = await engine.hold(pin.tokens, ttl=left, cache_salt=pin.cache_salt)
        if name in self._pins:
            pin.held[engine] = held
        else:  # it was released meanwhile
            with suppress(EngineError):
                await engine.let_go(held)

    async def _hold_again(self, name: str, pin: _KeptPin, engine: PinningEngine) -> None:
        try:
            await self._hold(name, pin, engine)
        except PagedCoreError as error:
            _log.warning("pin_not_held", pin=name, reason=str(error))

    def _work(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _forget_expired(self) -> None:
        now = self._clock()
        for name, pin in list(self._pins.items()):
            if pin.until is not None and pin.until <= now:
                del self._pins[name]
