"""ARC, 2Q and Belady's rule once more: from the papers, over lists that are searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor


def fewest_misses(references: Sequence[int], c: int) -> int:
    """The fewest misses that any choice of pages comes to: all are tried."""

    @cache
    def misses(position: int, pages: frozenset[int]) -> int:
        if position == len(references):
            return 0
        page = references[position]
        if page in pages:
            return misses(position + 1, pages)
        if len(pages) < c:
            return 1 + misses(position + 1, pages | {page})
        return 1 + min(misses(position + 1, pages - {gone} | {page}) for gone in pages)

    return misses(0, frozenset())


# ---------------------------------------------------------------------- blocks that come and go


class ArcModel(Evictor):
    """ARC where blocks may be in use: lists, the least recently used first."""

    def __init__(self) -> None:
        self.lists: tuple[list[tuple[BlockId, int | None]], ...] = ([], [])
        self.ghosts: tuple[list[int], ...] = ([], [])
        self.size, self.target = 0, 0.0

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        key, (b1, b2) = info.content_key, self.ghosts
        self.size = max(self.size, len(self) + 1)
        place = 1 if info.num_hits else 0
        if key in b1:
            place, self.target = 1, min(self.target + max(1, len(b2) / len(b1)), self.size)
        elif key in b2:
            place, self.target = 1, max(self.target - max(1, len(b1) / len(b2)), 0)
        for ghosts in self.ghosts:
            if key in ghosts:
                ghosts.remove(key)
        self.lists[place].append((block, key))
        while len(self.lists[0]) + len(b1) > self.size:
            b1.pop(0)
        while len(self) + len(b1) + len(b2) > 2 * self.size:
            b2.pop(0)

    def remove(self, block: BlockId, /) -> None:
        for held in self.lists:
            for entry in list(held):
                if entry[0] == block:
                    held.remove(entry)
                    return
        raise KeyError(block)

    def evict(self) -> BlockId:
        t1, t2 = self.lists
        if not t1 and not t2:
            raise OutOfBlocks("none is here")
        place = 0 if not t2 or len(t1) > self.target * (len(self) / self.size) else 1
        block, key = self.lists[place].pop(0)
        for ghosts in self.ghosts:
            if key in ghosts:
                ghosts.remove(key)
        if key is not None:
            self.ghosts[place].append(key)
        return block

    def __len__(self) -> int:
        return sum(map(len, self.lists))


@dataclass
class _Page:
    """Content of a block, from when it first became idle until it is given up."""

    block: BlockId
    key: int | None
    in_am: bool
    is_idle: bool = True


class TwoQModel(Evictor):
    """2Q where blocks may be in use: one list, in which a page of A1in never moves."""

    def __init__(self, kin: float, kout: float) -> None:
        self.kin, self.kout = kin, kout
        self.pages: list[_Page] = []
        self.a1out: list[int] = []
        self.size = 0

    def add(self, block: BlockId, info: BlockInfo, /) -> None:
        key = info.content_key
        found = [page for page in self.pages if page.block == block]
        if found and found[0].key == key:
            page = found[0]
            page.is_idle = True
            if page.in_am:
                self.pages.remove(page)
                self.pages.append(page)
        else:
            self.pages = [page for page in self.pages if page.block != block]
            self.pages.append(_Page(block, key, in_am=key in self.a1out))
            self.a1out = [ghost for ghost in self.a1out if ghost != key]
        self.size = max(self.size, len(self))

    def remove(self, block: BlockId, /) -> None:
        next(page for page in self.pages if page.block == block).is_idle = False

    def evict(self) -> BlockId:
        a1in = [page for page in self.pages if page.is_idle and not page.in_am]
        am = [page for page in self.pages if page.is_idle and page.in_am]
        if not a1in and not am:
            raise OutOfBlocks("none is here")
        gone = a1in[0] if len(a1in) > self.kin * len(self) else am[0]
        self.pages.remove(gone)
        if not gone.in_am and gone.key is not None:
            self.a1out = [*(ghost for ghost in self.a1out if ghost != gone.key), gone.key]
            while len(self.a1out) > self.kout * self.size:
                self.a1out.pop(0)
        return gone.block

    def __len__(self) -> int:
        return sum(page.is_idle for page in self.pages)
