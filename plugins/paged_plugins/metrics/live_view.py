"""Observer ``live_view``: what an engine does now, as differences for viewers.

It keeps counts, and reads blocks and requests only when it is asked to report. Reports have ids and
numbers in them and no tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from paged_core.engine.contexts import ObserverContext
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.sequence import SequenceGroup, Status
from paged_plugins.metrics.plugin import LiveViewSettings

MAX_CELLS = 16_384
"""Blocks of the device that are reported, and a quarter of that of the host: the first ones."""
MAX_REQUESTS = 256
"""Requests that are reported: those that run or are swapped, then those that wait."""
MAX_ENDED = 1024
"""Requests whose end is remembered for readers that have not heard of it."""
MAX_ID = 80
"""Characters of a request's id."""

Cell = tuple[int, int, int, bool, int]
"""A block: the number of a request that holds it, or -1; its place in the block table; how often
it is referenced; whether the prefix cache finds it; how often it did."""
_EMPTY: Cell = (-1, 0, 0, False, 0)


class LiveView(Observer):
    """Reports what has changed since a cursor; see the module."""

    def __init__(self, options: LiveViewSettings, context: ObserverContext, /) -> None:
        self._cache = context.kv_cache
        self._block_size = context.settings.block_size
        self._num_blocks = context.num_blocks
        self._num_cells = min(context.num_blocks, MAX_CELLS)
        self._num_host_cells = min(self._cache.num_host_blocks, MAX_CELLS // 4)
        # beyond those of an engine before this one, which a viewer may still hold
        self._cursor = self._oldest = time.time_ns() // 1_000_000
        self._live: dict[str, SequenceGroup] = {}
        self._prefills: dict[str, int] = {}
        """Tokens of admitted requests to be computed before they decode."""
        self._steps: deque[tuple[int, list[float]]] = deque(maxlen=options.steps)
        """The last steps, each with the first cursor after it."""
        self._hits = [0] * self._num_cells
        self._counts = dict.fromkeys(
            ("steps", "finished", "prompt_tokens", "cached_tokens", "preemptions", "evictions"), 0
        )
        self._num_generated = 0
        """Tokens of requests that have ended."""
        self._cells = [_EMPTY] * (self._num_cells + self._num_host_cells)
        self._cell_cursors = [self._cursor] * len(self._cells)
        self._rows: dict[int, list[Any]] = {}
        """Reports of requests, by number."""
        self._row_cursors: dict[int, int] = {}
        self._ended: deque[tuple[int, int]] = deque()
        """Cursors, and numbers of requests that are not reported any more."""
        self._totals: dict[str, int] = {}

    # ------------------------------------------------------------------ what it is told

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "added":
            self._live[group.id] = group
        elif event == "admitted":
            if not group.num_preemptions:
                self._counts["prompt_tokens"] += len(group.request.prompt)
                self._counts["cached_tokens"] += group.num_cached or 0
            self._prefills[group.id] = sum(
                each.num_tokens - each.num_scheduled for each in group.live
            )
        elif event == "finished":
            self._prefills.pop(group.id, None)
            if self._live.pop(group.id, None) is not None:
                self._counts["finished"] += 1
                self._num_generated += _num_generated(group)
        elif event == "preempted":
            self._prefills.pop(group.id, None)

    def on_step(self, step: StepRecord, /) -> None:
        computed = sum(step.scheduled.values())
        prefill = 0
        for name, left in list(self._prefills.items()):
            part = min(left, step.scheduled.get(name, 0))
            prefill += part
            if part == left:
                del self._prefills[name]
            elif part:
                self._prefills[name] = left - part
        preempted = len(step.preempted) + len(step.swapped_out)
        self._counts["steps"] += 1
        self._counts["preemptions"] += preempted
        self._counts["evictions"] += len(step.evicted)
        self._count_hits(step.evicted, 0)
        for blocks in step.hits.values():
            self._count_hits(blocks, 1)
        queues = step.queues
        entry = [step.number, step.ended - step.now, prefill, computed - prefill, preempted]
        entry += [len(queues.running), len(queues.waiting) + len(queues.swapped)]
        self._steps.append((self._cursor + 1, entry))

    def _count_hits(self, blocks: Iterable[int], hits: int) -> None:
        """Count hits of blocks; none: they hold other content now."""
        for block in blocks:
            if block < self._num_cells:
                self._hits[block] = self._hits[block] + hits if hits else 0

    # ------------------------------------------------------------------ what it says

    def report(self, since: int = 0) -> dict[str, Any]:
        """Return what has changed since a report whose ``cursor`` was ``since``, as plain data.

        With 0, or a cursor that is too old or another engine's, it returns all there is: ``whole``
        is true then. It is to be called between steps.

        * ``cursor``: for the next call; ``took``: the seconds that this one took.
        * ``engine``, if ``whole``: ``num_blocks``, ``block_size``, ``num_host_blocks``, and how
          many of each are reported, the first ones: ``num_cells``, ``num_host_cells``.
        * ``cells``: ``[block, request, place, references, cached, hits]``; blocks of the host are
          counted on from ``num_cells``. Without an entry in a whole report: free and empty.
        * ``requests``: ``[number, id, status, prompt, computed, generated, most, cached, blocks,
          host blocks, preemptions]``, in tokens, the third to last in blocks; ``ended``: numbers.
        * ``steps``: ``[number, seconds, prefill, decode, preempted, running, waiting]``.
        * ``totals``: counts since the start, and of what there is now.
        """
        started = time.perf_counter()
        self._look()
        whole = not self._oldest <= since <= self._cursor
        after = 0 if whole else since
        marks = self._cell_cursors
        if whole:
            changed = (i for i, cell in enumerate(self._cells) if cell != _EMPTY)
        else:
            changed = (i for i, mark in enumerate(marks) if mark > after)
        report: dict[str, Any] = {
            "cursor": self._cursor,
            "whole": whole,
            "cells": [[block, *self._cells[block]] for block in changed],
            "requests": [row for n, row in self._rows.items() if self._row_cursors[n] > after],
            "ended": [] if whole else [n for mark, n in self._ended if mark > after],
            "steps": [step for mark, step in self._steps if mark > after],
            "totals": self._totals,
        }
        if whole:
            report["engine"] = {
                "num_blocks": self._num_blocks,
                "block_size": self._block_size,
                "num_host_blocks": self._cache.num_host_blocks,
                "num_cells": self._num_cells,
                "num_host_cells": self._num_host_cells,
            }
        report["took"] = time.perf_counter() - started
        return report

    def _look(self) -> None:
        """Read blocks and requests; what has changed gets the next cursor."""
        mark = self._cursor + 1
        cells, totals = self._read_cells(), self._read_totals()
        changed = [
            i for i, (now, was) in enumerate(zip(cells, self._cells, strict=True)) if now != was
        ]
        for block in changed:
            self._cell_cursors[block] = mark
        rows = {group.number: self._row(group) for group in self._shown()}
        news = [number for number, row in rows.items() if self._rows.get(number) != row]
        gone = [number for number in self._rows if number not in rows]
        for number in news:
            self._row_cursors[number] = mark
        for number in gone:
            del self._row_cursors[number]
            self._ended.append((mark, number))
        while len(self._ended) > MAX_ENDED:
            self._oldest, _ = self._ended.popleft()
        if changed or news or gone or totals != self._totals:
            self._cursor = mark
        self._cells, self._rows, self._totals = cells, rows, totals

    def _read_cells(self) -> list[Cell]:
        num_cells, num_host = self._num_cells, self._num_host_cells
        owners, places = [-1] * self._num_blocks, [0] * self._num_blocks
        host = [_EMPTY] * num_host
        for group in self._live.values():
            number = group.number
            for sequence in group.live:
                table = sequence.table
                for place, block in enumerate(table.blocks):
                    if owners[block] < 0:
                        owners[block], places[block] = number, place
                for place, block in enumerate(table.host_blocks):
                    if block < num_host:
                        host[block] = (number, place, 1, False, 0)
        references, cached = self._cache.block_use()
        is_cached = [block in cached for block in range(num_cells)]
        self._hits = [
            hits if known else 0 for hits, known in zip(self._hits, is_cached, strict=True)
        ]
        device = zip(owners, places, references, is_cached, self._hits, strict=False)
        return [*device, *host]

    def _shown(self) -> Iterable[SequenceGroup]:
        live = self._live.values()
        running = (group for group in live if group.status is not Status.WAITING)
        waiting = (group for group in live if group.status is Status.WAITING)
        return islice(chain(running, waiting), MAX_REQUESTS)

    def _row(self, group: SequenceGroup) -> list[Any]:
        request, tables = group.request, [each.table for each in group.live]
        return [
            group.number,
            group.id[:MAX_ID],
            group.status.name.lower(),
            len(request.prompt),
            max((each.num_computed for each in group.live), default=0),
            _num_generated(group),
            group.request.sampling.width * (group.max_length - len(request.prompt)),
            group.num_cached or 0,
            sum(len(table.blocks) for table in tables),
            sum(len(table.host_blocks) for table in tables),
            group.num_preemptions,
        ]

    def _read_totals(self) -> dict[str, int]:
        live = list(self._live.values())
        waiting = sum(group.status is Status.WAITING for group in live)
        swapped = sum(group.status is Status.SWAPPED for group in live)
        cache = self._cache
        return self._counts | {
            "running": len(live) - waiting - swapped,
            "waiting": waiting,
            "swapped": swapped,
            "generated_tokens": self._num_generated + sum(map(_num_generated, live)),
            "free_blocks": cache.num_free,
            "cached_blocks": cache.num_cached,
            "free_host_blocks": cache.num_free_host,
        }


def _num_generated(group: SequenceGroup) -> int:
    prompt = len(group.request.prompt)
    return sum(len(each.tokens) - prompt for each in group.sequences)
