"""The times between the tokens of a sequence, counted in a histogram."""

from __future__ import annotations

from collections.abc import Sequence

from paged_core.sequence import SequenceState
from paged_plugins.lab.runs.time_histogram import bucket


class TokenGaps:
    """Counts gaps into ``counts``, by bucket; a step costs a few operations on whole sets."""

    def __init__(self, counts: dict[int, int]) -> None:
        self._counts = counts
        self._advanced: list[SequenceState] = []
        """Those that gained a token in the last step that drew any."""
        self._time = 0.0
        """When that was."""
        self._stalled: dict[SequenceState, float] = {}
        """Those that did not, and when they last gained one."""

    def step(self, advanced: Sequence[SequenceState], now: float) -> None:
        """A step ended ``now`` seconds from the start, in which these gained a token each."""
        if not advanced:
            return
        if advanced == self._advanced:
            self._add(now - self._time, len(advanced))
        else:
            self._compare(advanced, now)
        self._time = now

    def _compare(self, advanced: Sequence[SequenceState], now: float) -> None:
        before, after = set(self._advanced), set(advanced)
        common = before & after
        if common:
            self._add(now - self._time, len(common))
        if self._stalled:
            for sequence in after - before:
                last = self._stalled.pop(sequence, None)
                if last is not None:
                    self._add(now - last, 1)
        for sequence in before - after:
            if sequence.finish_reason is None:
                self._stalled[sequence] = self._time
        self._advanced = list(advanced)

    def _add(self, seconds: float, count: int) -> None:
        number = bucket(seconds)
        self._counts[number] = self._counts.get(number, 0) + count
