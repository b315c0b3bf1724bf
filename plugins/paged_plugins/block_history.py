"""The owners of blocks over time, read from the file of a ``block_map``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paged_core.errors import SettingsError
from paged_plugins.workloads.traces.files import checked, json_lines

VERSION = 1
"""Version of the format."""
MAX_BLOCKS = 4_000_000
"""Blocks of the cache, at most."""
MAX_LINE = 2**26
"""Bytes of a line."""

Number = Annotated[int, Field(ge=0)]
Pair = tuple[str, Number]
Run = tuple[str, Number, Number, list[Number]]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Head(_Strict):
    version: int
    num_blocks: Annotated[int, Field(gt=0, le=MAX_BLOCKS)]
    block_size: Annotated[int, Field(gt=0)]


class _Line(_Strict):
    step: Number
    time: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    freed: list[Annotated[Pair, Field(strict=False)]] = []
    held: list[Annotated[Run, Field(strict=False)]] = []
    ended: list[str] = []
    evicted: list[Number] = []


@dataclass(frozen=True, slots=True)
class Span:
    """A block in a block table for some steps."""

    block: int
    request: str
    sequence: int
    """The number of the sequence within its request, from 0."""
    index: int
    """The entry of the block table: the block holds tokens ``index * block_size`` on."""
    start: int
    """The first step in which it does."""
    end: int | None
    """The first step in which it does no more; ``None``: it did so to the last."""

    def includes(self, step: int) -> bool:
        """Return whether it held the block in that step."""
        return self.start <= step and (self.end is None or step < self.end)


class BlockHistory:
    """Which sequences held which blocks in which steps.

    Args:
        path: what ``block_map`` wrote, whole or broken off after a line.

    Raises:
        SettingsError: the file cannot be read, or is something else; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        self.times: dict[int, float] = {}
        """By step in which something changed: when it was planned, in seconds from the first."""
        self.evictions: list[tuple[int, int]] = []
        """Steps, and the blocks whose cached content was given up for them."""
        self._spans: list[Span] = []
        self._by_block: defaultdict[int, list[Span]] = defaultdict(list)
        self._by_request: dict[str, list[Span]] = {}
        self._open: dict[str, dict[int, dict[int, Span]]] = {}
        """By request, sequence and entry of its table: the span that goes on."""
        self._last = 0
        lines = json_lines(path, MAX_LINE)
        number, head = next(lines, (0, {}))
        if not number:
            raise SettingsError(f"{path} is empty; a block map begins with its version")
        first = checked(path, number, head, _Head)
        if first.version != VERSION:
            raise SettingsError(
                f"{path} is a block map of version {first.version}, and {VERSION} can be read; "
                "record it anew"
            )
        self.num_blocks, self.block_size = first.num_blocks, first.block_size
        for number, values in lines:
            self._take(path, number, checked(path, number, values, _Line))
        for tables in self._open.values():
            self._spans += [span for table in tables.values() for span in table.values()]
        for span in sorted(self._spans, key=lambda each: (each.start, each.sequence, each.index)):
            self._by_block[span.block].append(span)
            self._by_request[span.request].append(span)

    @property
    def requests(self) -> list[str]:
        """Requests that held blocks, in the order in which they first did."""
        return list(self._by_request)

    def owners(self, block: int, step: int) -> list[Span]:
        """Return who held a block in a step: several if they shared it, none if it was free."""
        return [span for span in self._by_block.get(block, ()) if span.includes(step)]

    def blocks(self, request: str) -> Sequence[Span]:
        """Return the blocks that a request held over time, by the step in which it got them."""
        return tuple(self._by_request.get(request, ()))

    def of_block(self, block: int) -> Sequence[Span]:
        """Return who held a block over time."""
        return tuple(self._by_block.get(block, ()))

    def held(self, step: int) -> Iterator[Span]:
        """Yield all that was held in a step."""
        return (span for span in self._spans if span.includes(step))

    def _take(self, path: Path, number: int, line: _Line) -> None:
        if line.step < self._last:
            raise SettingsError(f"{path}, line {number}: step {line.step} is not in order")
        self._last = line.step
        self.times[line.step] = line.time
        for request, sequence in line.freed:
            self._end(self._open.get(request, {}).pop(sequence, {}), line.step)
        for request, sequence, index, blocks in line.held:
            if blocks and max(blocks) >= self.num_blocks:
                raise SettingsError(
                    f"{path}, line {number}: block {max(blocks)}, and there are {self.num_blocks}"
                )
            self._by_request.setdefault(request, [])
            table = self._open.setdefault(request, {}).setdefault(sequence, {})
            for place, block in enumerate(blocks, index):
                if place in table:
                    self._end({place: table[place]}, line.step)
                table[place] = Span(block, request, sequence, place, line.step, None)
        for request in line.ended:
            for table in self._open.pop(request, {}).values():
                self._end(table, line.step + 1)
        self.evictions += [(line.step, block) for block in line.evicted]

    def _end(self, table: Mapping[int, Span], end: int) -> None:
        """Keep spans, which go on no longer, as ended with the step before ``end``."""
        self._spans += [replace(span, end=end) for span in table.values() if span.start < end]
