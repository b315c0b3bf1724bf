"""Lengths of earlier answers to prompts that begin alike, and of the tenant's."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.engine.contexts import SlotContext
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.interfaces.observer import Observer
from paged_core.plugins.component import ComponentSettings
from paged_core.request import FinishReason, Request
from paged_core.sequence import SequenceGroup

_ENDED = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class HistorySettings(ComponentSettings):
    """Options of :class:`HistoryPredictor`."""

    name: Literal["history"] = "history"
    prefix_tokens: PositiveInt = Field(
        default=64, description="first tokens of a prompt by which it is like others"
    )
    min_answers: PositiveInt = Field(
        default=4, description="answers that must have ended before their mean is expected"
    )
    window: PositiveInt = Field(
        default=100, description="answers after which the weight of an older one fades"
    )
    max_entries: PositiveInt = Field(
        default=4096, description="prefixes and tenants that are remembered, at most"
    )


@dataclass(slots=True)
class _Answers:
    """Moving mean and variance of the lengths of answers."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, length: int, window: int) -> None:
        self.count = min(self.count + 1, window)
        share, off = 1 / self.count, length - self.mean
        self.mean += share * off
        self.variance = (1 - share) * (self.variance + share * off * off)


class HistoryPredictor(LengthPredictor, Observer):
    """Expects the mean of earlier answers: to the tenant's prompts that begin alike, else to the
    tenant's, else to all.

    The mean moves with a window. What was used longest ago is forgotten first.
    """

    learns = True

    def __init__(self, options: HistorySettings, context: SlotContext, /) -> None:
        self._options = options
        self._least = min(options.min_answers, options.window)
        self._answers: dict[Hashable, _Answers] = {}
        """By what requests have in common, the one that learned last at the end."""

    def expect(self, request: Request, /) -> ExpectedLength | None:
        for key in self._keys(request):
            found = self._answers.get(key)
            if found is not None and found.count >= self._least:
                return ExpectedLength(max(found.mean, 1.0), sqrt(found.variance))
        return None

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            lengths = [len(e.output) for e in group.sequences if e.finish_reason in _ENDED]
            for key in self._keys(group.request) if lengths else ():
                known = self._answers[key] = self._answers.pop(key, _Answers())
                for length in lengths:
                    known.add(length, self._options.window)
            while len(self._answers) > self._options.max_entries:
                del self._answers[next(iter(self._answers))]

    def _keys(self, request: Request) -> Iterator[Hashable]:
        yield request.tenant, request.prompt[: self._options.prefix_tokens]
        yield request.tenant
        yield None
