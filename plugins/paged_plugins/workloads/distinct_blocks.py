"""The distinct blocks of a workload: those of a cache that never had to evict."""

from __future__ import annotations

from collections.abc import Iterable

from paged_plugins.workloads.request import ContentIds, Part, WorkloadRequest

_Runs = tuple[tuple[int, int], ...]
_Beginning = tuple[int, _Runs, int]
"""Keys of the full blocks of a text; content ids of the rest, in runs; their number."""
_FIRST_ANSWER = 1 << 62
"""Content ids from here on are those of answers: no two have tokens in common."""


class DistinctBlocks:
    """Counts full blocks of prompts and answers; of those with equal content behind equal
    beginnings there is one.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._seen: set[int] = set()
        self._answers = ContentIds(_FIRST_ANSWER)

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, first: WorkloadRequest) -> None:
        """Count a request and those that follow it."""
        ends: dict[str | None, _Beginning] = {None: (hash(first.cache_salt), (), 0)}
        for request, follows in first.links():
            prompt = self._extended(ends[follows], request.prompt)
            for number in range(request.n):
                answer = self._answers.take(request.output)
                end = self._extended(prompt, [answer[:-1]])  # the last token is never computed
                if number == 0 and request.followers:
                    ends[request.id] = self._extended(end, [answer[-1:]])

    def _extended(self, beginning: _Beginning, parts: Iterable[Part]) -> _Beginning:
        """Return a text with more behind it, and count the blocks that this fills."""
        chain, kept, held = beginning
        runs = list(kept)
        for part in parts:
            for run in (part,) if isinstance(part, range) else (range(i, i + 1) for i in part):
                start = run.start
                while start < run.stop:
                    end = min(run.stop, start + self._size - held)
                    if runs and runs[-1][1] == start:
                        runs[-1] = runs[-1][0], end
                    else:
                        runs.append((start, end))
                    held, start = held + end - start, end
                    if held == self._size:
                        chain, runs, held = hash((chain, *runs)), [], 0
                        self._seen.add(chain)
        return chain, tuple(runs), held
