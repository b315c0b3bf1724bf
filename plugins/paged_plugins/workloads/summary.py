"""A workload in a few numbers."""

from __future__ import annotations

from array import array
from typing import Any

from paged_plugins.workloads.request import WorkloadRequest


class WorkloadSummary:
    """Counts requests as they are drawn; memory grows by some numbers for each."""

    def __init__(self) -> None:
        self._num_first = 0
        self._last = 0.0
        self._num_shared = 0
        self._depth = 0
        self._new = array("q")
        self._prompts = array("q")
        self._outputs = array("q")
        self._beginnings: set[int] = set()
        """Hashes of what the prompts so far begin with: their first part, the first two ..."""

    def add(self, first: WorkloadRequest) -> None:
        """Count a request and those that follow it."""
        self._num_first += 1
        self._last = first.at
        self._num_shared += self._num_known(first)
        turns = {first.id: 1}
        """By id, which turn of its conversation a request is."""
        for request, prompt in first.whole_prompts():
            turn = turns.pop(request.id)
            turns |= dict.fromkeys((each.id for each in request.followers), turn + 1)
            self._num_shared += prompt - request.num_new
            self._depth = max(self._depth, turn)
            self._new.append(request.num_new)
            self._prompts.append(prompt)
            self._outputs.append(request.output * request.n)

    def figures(self) -> dict[str, Any]:
        """Return the numbers by name; lengths in tokens, times in seconds.

        ``shared`` is the share of prompt tokens that an earlier prompt or answer had in the same
        place: what a prefix cache without end could serve.
        """
        num_requests = len(self._new)
        return {
            "requests": num_requests,
            "first_requests": self._num_first,
            "most_turns": self._depth,
            "last_arrival_s": round(self._last, 3),
            "first_requests_per_s": round(self._num_first / self._last, 3) if self._last else None,
            "prompt": _percentiles(self._prompts),
            "new": _percentiles(self._new),
            "output": _percentiles(self._outputs),
            "prompt_tokens": sum(self._prompts),
            "output_tokens": sum(self._outputs),
            "shared": round(self._num_shared / sum(self._prompts), 4) if num_requests else None,
        }

    def _num_known(self, first: WorkloadRequest) -> int:
        """Return the tokens that a first request shares with the beginning of an earlier one."""
        num_known, is_known, beginning = 0, True, hash(first.cache_salt)
        for part in first.prompt:
            beginning = hash((beginning, part))
            is_known = is_known and beginning in self._beginnings
            num_known += len(part) if is_known else 0
            self._beginnings.add(beginning)
        return num_known


def _percentiles(values: array[int]) -> dict[str, int] | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p90": ordered[last * 9 // 10], "max": ordered[-1]}
