"""Length predictors that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from collections import deque
from itertools import count
from math import fsum, nan, sqrt
from random import random
from time import monotonic
from typing import Any, ClassVar

from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.interfaces.observer import Observer
from paged_core.request import Request
from paged_core.sequence import SequenceGroup
from unit.faulty_settings import with_another


class _Right(LengthPredictor):
    def __init__(self, options: Any, context: Any, /) -> None:
        self.asked = count()
        self.known: dict[str, ExpectedLength] = {}

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(len(request.prompt))


def _mean(group: SequenceGroup) -> int:
    return sum(len(each.output) for each in group.sequences) // len(group.sequences)


class _Learning(_Right, Observer):
    learns = True

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self.last = 1
        self.ended: list[int] = []

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(self.last)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.last = 1 + _mean(group)


def _keep(own: _Learning, group: SequenceGroup, event: str, /) -> None:
    own.ended.extend([len(group.request.prompt)] * 100)


def _sum(own: _Learning, request: Request, /) -> ExpectedLength:
    total = 1
    for length in own.ended[::100]:
        total += length
    return ExpectedLength(total)


def _touch(own: _Learning, group: SequenceGroup, event: str, /) -> None:
    group.num_preemptions += 1


def _size(own: _Learning, group: SequenceGroup, event: str, /) -> None:
    own.known[str(len(group.request.prompt))] = ExpectedLength(1)


def _first(own: _Learning, group: SequenceGroup, event: str, /) -> None:
    own.last = 1 + len(group.sequences[0].output)


def _whole(own: _Learning, group: SequenceGroup, event: str, /) -> None:
    if event == "finished":
        own.last = group.sequences[0].num_tokens


WRONG_ANSWERS = {
    "NumberPredictor": lambda own, request: 7,
    "ByNamePredictor": lambda own, request: own.known.setdefault(
        request.id, ExpectedLength(len(request.prompt))
    ),
    "ZeroPredictor": lambda own, request: ExpectedLength(len(request.prompt) - 1),
    "NanPredictor": lambda own, request: ExpectedLength(5, nan),
    "TextPredictor": lambda own, request: ExpectedLength("5"),  # type: ignore[arg-type]
    "CountingPredictor": lambda own, request: ExpectedLength(1 + next(own.asked)),
    "ClockPredictor": lambda own, request: ExpectedLength(1 + monotonic()),
    "DicePredictor": lambda own, request: ExpectedLength(1 + random()),
    "HashPredictor": lambda own, request: ExpectedLength(1 + hash(request.id) % 90),
    "EndlessPredictor": lambda own, request: ExpectedLength(request.sampling.max_tokens),
}
globals().update(with_another(__name__, _Right, "expect", WRONG_ANSWERS))
LEARNS = {"QuietPredictor": False, "LatePredictor": property(lambda own: own.last > 1)}
globals().update(with_another(__name__, _Learning, "learns", LEARNS))
globals().update(with_another(__name__, _Right, "learns", {"DeafPredictor": True}))
TELLS = {
    **{"TouchingPredictor": _touch, "SizesPredictor": _size, "FirstPredictor": _first},
    "WholePredictor": _whole,
    # knows nothing of what is refused
    "SimplePredictor": lambda own, group, event: (
        "added",
        "admitted",
        "preempted",
        "swapped_out",
        "swapped_in",
        "finished",
    ).index(event),
}
globals().update(with_another(__name__, _Learning, "on_request", TELLS))


class KeepingPredictor(_Learning):
    """Keeps all that has ended, and looks through it each time."""

    on_request = _keep
    expect = _sum


class MemoPredictor(_Learning):
    """Keeps its last answers by the ids of requests, whatever it learns meanwhile."""

    def expect(self, request: Request, /) -> ExpectedLength | None:
        if self.last == 1:  # has learnt nothing
            return None
        found = self.known.setdefault(request.id, ExpectedLength(self.last))
        if len(self.known) > 8:
            del self.known[next(iter(self.known))]
        return found


class FractionPredictor(_Learning):
    """Takes a variance as the difference of two squares, which of numbers that are not whole are
    rounded."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self.lately = deque[float](maxlen=4)

    def expect(self, request: Request, /) -> ExpectedLength | None:
        if not self.lately:
            return None
        mean = fsum(self.lately) / len(self.lately)
        squares = sum(each * each for each in self.lately) / len(self.lately)
        return ExpectedLength(mean, sqrt(squares - mean * mean))

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            lengths = [len(each.output) for each in group.sequences]
            self.lately.append(max(1, sum(lengths) / len(lengths)))


class SilentPredictor(_Learning):
    """Does not say that it learns, since it begins late."""

    learns = False

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(self.last) if len(self.ended) > 50 else None

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        super().on_request(group, event)
        self.ended = [*self.ended[-60:], self.last]


class SummingPredictor(_Learning):
    """Learns how long all sequences of a request were together."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.last = max(1, sum(len(each.output) for each in group.sequences))


class TenantPredictor(_Learning):
    """Remembers the last length of each tenant for ever."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self.of: dict[str, int] = {}

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(self.of.get(request.tenant, 1))

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.of[group.request.tenant] = 1 + _mean(group)


class CommonPredictor(_Learning):
    """Keeps what it learns where all engines find it."""

    known_to_all: ClassVar[list[int]] = [1]

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return ExpectedLength(self.known_to_all[0])

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.known_to_all[0] = 1 + _mean(group)


class CuriousPredictor(TenantPredictor):
    """Makes room for each tenant that it is asked about, and forgets another for it."""

    def expect(self, request: Request, /) -> ExpectedLength | None:
        found = self.of.setdefault(request.tenant, 1)
        if len(self.of) > 1000:
            del self.of[next(iter(self.of))]
        return ExpectedLength(found)


class BarePredictor(_Learning):
    """Expects nothing where the last answer had no token."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.last = _mean(group)


class _Lately(_Learning):
    """Remembers the last lengths of a few tenants."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self.of: dict[str, int] = {}

    def expect(self, request: Request, /) -> ExpectedLength | None:
        found = self.of.get(request.tenant)
        return ExpectedLength(found) if found else None

    def first(self) -> str:
        return next(iter(self.of))

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.of.pop(group.request.tenant, None)
            self.of[group.request.tenant] = 1 + _mean(group)
            while len(self.of) > 8:
                del self.of[self.first()]


class HashedPredictor(_Lately):
    """Forgets the tenant of the least hash."""

    def first(self) -> str:
        return min(self.of, key=hash)


class RefreshingPredictor(_Lately):
    """Forgets the tenant that it was not asked about for the longest time."""

    def expect(self, request: Request, /) -> ExpectedLength | None:
        if found := self.of.pop(request.tenant, None):
            self.of[request.tenant] = found
        return ExpectedLength(found) if found else None


class NotingPredictor(_Lately):
    """Notes what it was asked about until it ends."""

    def expect(self, request: Request, /) -> ExpectedLength | None:
        self.known[request.id] = ExpectedLength(1)
        return super().expect(request)

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        super().on_request(group, event)
        if event == "finished":
            self.known.pop(group.id, None)
