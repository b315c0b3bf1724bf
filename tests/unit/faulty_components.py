"""Components that cannot be tested, or are wrong only where no case comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paged_core.sequence import SequenceGroup
from paged_policies.victims.newest import NewestVictim
from unit.faulty_settings import FaultyShareSettings

UnimportableVictim = type("UnimportableVictim", (), {"__module__": "unit.a_module_not_there"})
MisspeltVictim = type("MisspeltVictim", (), {"__module__": "unit.faulty_policies"})


class CheckedVictim(NewestVictim):
    """Sound, but for its check."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self.limit = getattr(options, "limit", None)


class UnreadVictim(CheckedVictim):
    """Assigns its option, and goes by nothing of it."""

    def __init__(self, options: FaultyShareSettings, context: Any, /) -> None:
        super().__init__(options, context)
        self._most_unread = options.unread_share


class UnboundedVictim(CheckedVictim):
    """Sound, but for its options."""


class LimitedVictim(CheckedVictim):
    """Wrong with small options, which no test names."""

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        assert self.limit is not None
        return candidates[-1] if len(candidates) < 2 * self.limit else candidates[self.limit * 99]


def check_that_raises() -> str | None:
    """Raise, as a check with a mistake does."""
    raise LookupError("no such device is known")


def check_without_reason() -> Any:
    """Refuse without a reason."""
    return False


def check_that_refuses() -> str | None:
    """Refuse wherever it is asked."""
    return "it never runs"
