"""Which blocks the prefix cache of an engine holds, as numbered events that can be replayed."""

from __future__ import annotations

import time
from collections import Counter, deque
from itertools import groupby, islice
from typing import Any, Literal

from pydantic import Field

from paged_core.ids import BlockId
from paged_core.interfaces.observer import CacheEvent, Observer
from paged_core.plugins.component import ComponentSettings
from paged_plugins.routing.router import BlockChange


class BlockEventsSettings(ComponentSettings):
    """Options of :class:`BlockEvents`."""

    name: Literal["block_events"] = "block_events"
    num_kept: int = Field(
        default=16384,
        ge=0,
        le=2**20,
        description="events that are kept for readers; one that has missed more gets all that the "
        "prefix cache holds",
    )


class BlockEvents(Observer):
    """Keeps the last changes of what the prefix cache holds, and reports those that are asked for.

    Contents are told by :attr:`~paged_core.ids.BlockKey.digest`, which is the same in every
    process; that a second block holds the same content is no change. Events are numbered from the
    time of its making in nanoseconds: numbers that another engine gave are never taken for its own.
    """

    def __init__(self, options: BlockEventsSettings, context: object = None, /) -> None:
        self._events: deque[tuple[str, int]] = deque(maxlen=options.num_kept)
        self._next = time.time_ns()
        """The number of the next event."""
        self._content: dict[BlockId, int] = {}
        self._num_blocks: Counter[int] = Counter()
        """Blocks that hold each content, where there are any."""

    def on_cache(self, event: CacheEvent, /) -> None:
        block, key = event.block, event.key
        if block is None:
            self._content.clear()
            self._num_blocks.clear()
            self._add("cleared", 0)
            return
        before = self._content.pop(block, None)
        if before is not None:
            self._num_blocks[before] -= 1
            if not self._num_blocks[before]:
                del self._num_blocks[before]
                self._add("removed", before)
        if key is not None:
            digest = self._content[block] = key.digest
            self._num_blocks[digest] += 1
            if self._num_blocks[digest] == 1:
                self._add("stored", digest)

    def report(self, since: int, /) -> dict[str, Any]:
        """Return ``events``, and as ``next`` the number to ask for the following ones with.

        Args:
            since: ``next`` of the report before; 0: there was none.

        Each of the ``events`` is a :data:`~paged_plugins.routing.router.BlockChange`. If those
        after ``since`` are not kept, they are ``cleared``, and all that is held now as ``stored``.
        """
        missed = self._next - since
        if not 0 <= missed <= len(self._events):
            changes: list[BlockChange] = [("cleared", []), ("stored", list(self._num_blocks))]
        else:
            changes = self._since(missed)
        return {"next": self._next, "events": changes}

    def _since(self, missed: int) -> list[BlockChange]:
        """Return the last events, those of one kind that follow each other as one."""
        events = islice(self._events, len(self._events) - missed, None)
        return [
            (kind, [key for _, key in each] if kind != "cleared" else [])
            for kind, each in groupby(events, lambda event: event[0])
        ]

    def _add(self, kind: str, key: int) -> None:
        self._events.append((kind, key))
        self._next += 1
