"""ARC, 2Q and Belady's rule once more: from the papers, over lists that are searched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

# ---------------------------------------------------------------------- pages, as in the papers


def arc_hits(references: Sequence[int], c: int) -> list[bool]:
    """Figure 4 of Megiddo and Modha (2003), page by page; lists begin with the LRU page.

    Two things differ, because an evictor makes room before it knows for which page: the target p
    moves after REPLACE, and REPLACE does not know of x.
    """
    t1: list[int] = []
    t2: list[int] = []
    b1: list[int] = []
    b2: list[int] = []
    p, hits = 0.0, []

    def replace() -> None:
        if t1 and (len(t1) > p or not t2):
            b1.append(t1.pop(0))
        else:
            b2.append(t2.pop(0))

    for x in references:
        hits.append(x in t1 or x in t2)
        if x in t1:
            t1.remove(x)
            t2.append(x)
        elif x in t2:
            t2.remove(x)
            t2.append(x)
        elif x in b1:
            replace()
            p = min(p + (1 if len(b1) >= len(b2) else len(b2) / len(b1)), c)
            b1.remove(x)
            t2.append(x)
        elif x in b2:
            replace()
            p = max(p - (1 if len(b2) >= len(b1) else len(b1) / len(b2)), 0)
            b2.remove(x)
            t2.append(x)
        else:
            total = len(t1) + len(t2) + len(b1) + len(b2)
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.pop(0)
                    replace()
                else:
                    t1.pop(0)
            elif total >= c:
                if total == 2 * c:
                    b2.pop(0)
                replace()
            t1.append(x)
    return hits


def two_q_hits(references: Sequence[int], c: int, kin: float, kout: float) -> list[bool]:
    """The full version of Johnson and Shasha (1994), page by page; lists begin with the oldest.

    Room is made before it is known for which page, so whether X is in A1out is looked up after.
    """
    a1in: list[int] = []
    a1out: list[int] = []
    am: list[int] = []
    hits = []

    def reclaim() -> None:
        if len(a1in) + len(am) < c:
            return
        if len(a1in) > kin * c:
            a1out.append(a1in.pop(0))
            while len(a1out) > kout * c:
                a1out.pop(0)
        else:
            am.pop(0)

    for x in references:
        hits.append(x in am or x in a1in)
        if x in am:
            am.remove(x)
            am.append(x)
        elif x not in a1in:
            reclaim()
            if x in a1out:
                a1out.remove(x)
                am.append(x)
            else:
                a1in.append(x)
    return hits


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
