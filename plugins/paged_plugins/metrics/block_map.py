"""Observer ``block_map``: which request owns which block, step by step, in a file.

Each line is a JSON object. The first has ``version``, ``num_blocks`` and ``block_size``; each other
one is a step in which a block table changed:

* ``step``, and ``time`` when it was planned, in seconds from the first step;
* ``freed``: ``[request, sequence]`` pairs that gave up all blocks before it;
* ``held``: ``[request, sequence, index, blocks]``: the blocks of a table from ``index`` on;
* ``ended``: requests that gave up all blocks after it;
* ``evicted``: blocks whose cached content was given up for it.

Keys that would be empty are left out. :class:`~paged_plugins.block_history.BlockHistory`
reads it. Blocks that pinned prefixes hold belong to no request.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from paged_core.engine.contexts import ObserverContext
from paged_core.ids import SeqId
from paged_core.interfaces.observer import BlockEvent, Observer, StepRecord
from paged_core.sequence import SequenceGroup
from paged_plugins.block_history import VERSION
from paged_plugins.metrics.plugin import BlockMapSettings
from paged_plugins.written_files import open_log

Owner = tuple[str, int]
"""A request, and the number of one of its sequences, from 0."""


class BlockMap(Observer):
    """Writes a line per step in which a block table changed; see the module.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: BlockMapSettings, context: ObserverContext, /) -> None:
        self._file = open_log(options.path, "block_map.path")
        size = context.settings.block_size
        self._write({"version": VERSION, "num_blocks": context.num_blocks, "block_size": size})
        self._start: float | None = None
        self._live: dict[str, SequenceGroup] = {}
        self._owners: dict[SeqId, Owner] = {}
        """Block tables of the sequences of live requests."""
        self._numbers: dict[str, list[SeqId]] = {}
        """By request: its sequences in the order of their numbers."""
        self._holding: defaultdict[str, dict[SeqId, int]] = defaultdict(dict)
        """By request: those of its sequences that hold blocks, with their numbers."""
        self._events: defaultdict[int, list[BlockEvent]] = defaultdict(list)
        """By step, until its record comes."""
        self._gone: dict[str, None] = {}
        """Requests that ended since the last record, in no step."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "added":
            self._live[group.id] = group
        elif event == "finished":
            self._live.pop(group.id, None)
            if group.id in self._numbers:
                self._gone[group.id] = None

    def on_block(self, event: BlockEvent, /) -> None:
        if event.sequence not in self._owners and event.index is not None:
            self._find_owners()
        self._events[event.step].append(event)

    def on_step(self, step: StepRecord, /) -> None:
        if self._start is None:
            self._start = step.now
        freed, held = self._changes(self._events.pop(step.number, []))
        for name in self._gone:  # aborted or ignored: before the step
            freed += [(name, number) for number in self._holding.get(name, {}).values()]
        ended = [name for name in step.finished if self._holding.get(name)]
        self._gone.update(dict.fromkeys(step.finished))
        self._forget_gone()
        changes = {"freed": freed, "held": held, "ended": ended, "evicted": list(step.evicted)}
        if any(changes.values()):
            filled = {key: value for key, value in changes.items() if value}
            self._write({"step": step.number, "time": round(step.now - self._start, 9), **filled})

    def close(self) -> None:
        self._file.close()

    def _changes(self, events: list[BlockEvent]) -> tuple[list[Owner], list[list[Any]]]:
        """Return who gave up all blocks, and the entries of tables that changed, in runs."""
        freed: list[Owner] = []
        held: list[list[Any]] = []
        for event in events:
            owner = self._owners.get(event.sequence)
            if owner is None:
                continue  # its request has ended, which is written already
            name, number = owner
            if event.index is None:
                if self._holding[name].pop(event.sequence, None) is not None:
                    freed.append(owner)
                continue
            self._holding[name][event.sequence] = number
            last = held[-1] if held else None
            if last and last[:2] == [name, number] and event.index == last[2] + len(last[3]):
                last[3].append(event.block)
            else:
                held.append([name, number, event.index, [event.block]])
        return freed, held

    def _find_owners(self) -> None:
        """Number the sequences that are new, within their request."""
        for group in self._live.values():
            for sequence in (*group.sequences, *group.live):
                if sequence.id not in self._owners:
                    known = self._numbers.setdefault(group.id, [])
                    self._owners[sequence.id] = (group.id, len(known))
                    known.append(sequence.id)

    def _forget_gone(self) -> None:
        for name in self._gone:
            self._holding.pop(name, None)
            for seq_id in self._numbers.pop(name, ()):
                del self._owners[seq_id]
        self._gone.clear()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
