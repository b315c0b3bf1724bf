"""Admissions that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from collections import Counter
from itertools import count
from time import monotonic
from typing import Any

from paged_core.interfaces.admission import Admission, Decision, Held, Load, Refused
from paged_core.interfaces.observer import Observer
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup
from unit.faulty_settings import with_another


class _Right(Admission):
    def __init__(self, options: Any, context: Any, /) -> None:
        self.known: list[str] = []

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        return None


def _keep(own: _Right, request: Request, load: Load, now: float, /) -> Decision:
    own.known.extend([request.id] * 20)
    return None


def _count(own: _Right, request: Request, load: Load, now: float, /) -> Decision:
    return Held(now + 1) if next(_ASKED) % 3 else None


class _OfTenants(_Right, Observer):
    """Counts the requests of each tenant, and refuses what is too much."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self.open = Counter[str]()

    def over(self, request: Request, now: float) -> Decision:
        return Refused("too many", 1.0)

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        return self.over(request, now) if self.open[request.tenant] >= 3 else None

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.open[group.request.tenant] += (event == "added") - (event == "finished")
        self.open += Counter()  # without those of none


class SteadyAdmission(_Right):
    """Forgets when the requests of a tenant came once there is none for a while."""

    last = 0.0

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        if now > self.last + 100:
            self.known.clear()
        self.known.append(str(now))
        self.last = now
        return None


class AbortsAdmission(_OfTenants):
    """Counts a request until a step ends it, and so for ever where it is aborted."""

    missed = FinishReason.ABORT

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        is_missed = any(s.finish_reason is self.missed for s in group.sequences)
        if not (event == "finished" and is_missed):
            super().on_request(group, event)


class ErrorsAdmission(AbortsAdmission):
    """Counts a request for ever where it ends by an error."""

    missed = FinishReason.ERROR


class CuttingAdmission(_Right):
    """Cuts an expected length to what a request may have, which may be any."""

    def __init__(self, options: Any, context: Any, /) -> None:
        self.lengths = context.length_predictor

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        expected = self.lengths and self.lengths.expect(request)
        is_long = expected and min(expected.tokens, request.sampling.max_tokens) > 1e6
        return Refused("too long") if is_long else None


class RegularAdmission(_Right):
    """Keeps when each request of a tenant came, as long as there are requests of others."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        if request.tenant == "regular":
            self.known += [str(now)] * 20
        return None


OVER = {
    # names seconds where a time is asked for, and a time where seconds are
    "LastingAdmission": lambda own, request, now: Held(5.0),
    "DatedAdmission": lambda own, request, now: Refused("too many", now + 5),
    # counts from now to what is over
    "OverdueAdmission": lambda own, request, now: Refused(
        "too many", (request.deadline or now) - now
    ),
    # remembers what it refused
    "GrudgingAdmission": lambda own, request, now: (
        own.known.append(request.id) or Refused("too many")
    ),
}
globals().update(with_another(__name__, _OfTenants, "over", OVER))


class WindowAdmission(_Right):
    """Holds back what is too much for ten seconds of the clock."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        if self.known[:1] != [str(now // 10)]:
            self.known.clear()
        self.known.append(str(now // 10))
        return Held((now // 10 + 1) * 10) if len(self.known) > 99 else None


class ForksAdmission(_OfTenants):
    """Takes back the sequences that there are, of a request that counts for those it asks for."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        number = group.request.sampling.n if event == "added" else -len(group.sequences)
        self.open[group.request.tenant] += number * (event in ("added", "finished"))


class FrontAdmission(_Right, Observer):
    """Forgets tenants from the first on, where one who goes on asking stays."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.known += {group.request.tenant} - {*self.known}
        while self.known[:1] not in ([], ["regular"]):
            del self.known[0]


class StrayAdmission(_OfTenants):
    """Raises when a request ends."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            raise KeyError(group.id)
        super().on_request(group, event)


class DecidingAdmission(_OfTenants):
    """Counts what it decides over, refused or not."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        self.open[request.tenant] += 1
        return Refused("too many") if self.open[request.tenant] > 3 else None

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.open[group.request.tenant] -= 1
            self.open += Counter()


class PromisingAdmission(DecidingAdmission):
    """Counts what it accepts, also what is not added after all."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        if self.open[request.tenant] >= 12:
            return Refused("too many")
        self.open[request.tenant] += 1
        return None


class SetAdmission(_Right):
    """Refuses the tenants of the last requests, of which it forgets whichever a set gives."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        if request.tenant in self.known and len(request.prompt) > 1000:
            return Refused("again")
        self.known.append(request.tenant)
        while len(self.known) > 16:
            self.known.remove(next(iter({*self.known})))
        return None


class UncountingAdmission(_Right, Observer):
    """Takes what was refused for what has ended."""

    there = 0

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.there += (event == "added") - (event in ("finished", "refused"))

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        return Refused("full") if self.there >= 12 else None


_ASKED = count()
WRONG_DECISIONS = {
    "NumberAdmission": lambda own, request, load, now: 7,
    "WordlessAdmission": lambda own, request, load, now: Refused(""),
    "LoadedAdmission": lambda own, request, load, now: Held("5") if load.num_waiting else None,
    "ClockAdmission": lambda own, request, load, now: Held(now + monotonic() % 1e-3),
    "HashAdmission": lambda own, request, load, now: Held(now + hash(request.id) % 9),
    "KeepingAdmission": _keep,
    "HurriedAdmission": lambda own, request, load, now: Refused("full", -1.0),
    "CommonAdmission": _count,
    "RelativeAdmission": lambda own, request, load, now: Held(5.0) if load.num_waiting else None,
    # takes each engine for one whose sequences are limited
    "SeatedAdmission": lambda own, request, load, now: (
        None if load.num_waiting or load.num_running < load.max_num_seqs else Held(now + 5)
    ),
    # takes it that blocks are free while nothing waits
    "CrampedAdmission": lambda own, request, load, now: (
        (load.num_waiting or load.free_tokens) and None
    ),
    # until the next slot of time
    "SlottedAdmission": lambda own, request, load, now: Held(now // 2 * 2 + 3),
}
globals().update(with_another(__name__, _Right, "decide", WRONG_DECISIONS))
