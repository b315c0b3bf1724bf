"""Arrivals: when the requests of a workload come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from math import inf, log1p
from random import Random
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field

from paged_plugins.workloads.amount import Kind, gamma, kind_reader, single
from paged_plugins.workloads.traces.files import NO_REQUEST, TraceError, estimated_tokens
from paged_plugins.workloads.traces.trace import TraceSpec

_RAREST = 1e-4
"""Arrivals per second; the times of ten million that are rarer could not be written to a file."""
Rate = Annotated[float, Field(ge=_RAREST, le=1e9)]
"""Arrivals per second."""


def _written(rate: float) -> float:
    """Return a rate as it is written in a file, without the rounding of binary fractions."""
    return float(f"{rate:.12g}")


class AtOnce(Kind):
    """All at the start."""

    kind: Literal["at_once"] = "at_once"

    @property
    def mean_rate(self) -> float | None:
        """Arrivals per second; ``None``: a file says when they come."""
        return inf

    def faster(self, factor: float) -> Self:
        """Return the same arrivals, so many times as fast."""
        return self

    def times(self, chance: Random) -> Iterator[float]:
        """Yield the time of each arrival in seconds, without end unless a file ends."""
        return repeat(0.0)


class Interval(Kind):
    """One every so many seconds, the first at the start."""

    kind: Literal["interval"] = "interval"
    seconds: Annotated[float, Field(ge=0, le=1 / _RAREST)]

    @property
    def mean_rate(self) -> float | None:
        """As in :class:`AtOnce`."""
        return 1 / self.seconds if self.seconds else inf

    def faster(self, factor: float) -> Self:
        """As in :meth:`AtOnce.faster`."""
        return self.model_copy(update={"seconds": self.seconds / factor})

    def times(self, chance: Random) -> Iterator[float]:
        """As in :meth:`AtOnce.times`."""
        number = 0
        while True:
            yield number * self.seconds
            number += 1


class Poisson(Kind):
    """Independent of each other, ``rate`` per second on average."""

    kind: Literal["poisson"] = "poisson"
    rate: Rate

    @property
    def mean_rate(self) -> float | None:
        """As in :class:`AtOnce`."""
        return self.rate

    def faster(self, factor: float) -> Self:
        """As in :meth:`AtOnce.faster`."""
        return self.model_copy(update={"rate": _written(self.rate * factor)})

    def times(self, chance: Random) -> Iterator[float]:
        """As in :meth:`AtOnce.times`."""
        time = 0.0
        while True:
            time -= log1p(-chance.random()) / self.rate
            yield time


class Gamma(Kind):
    """Gaps from a gamma distribution of shape ``burstiness``, ``rate`` per second on average.

    Burstiness as in ``vllm bench serve``: 1 is Poisson, less comes in bursts, more is more regular.
    """

    kind: Literal["gamma"] = "gamma"
    rate: Rate
    burstiness: Annotated[float, Field(ge=0.01, le=1e6)] = 1.0

    @property
    def mean_rate(self) -> float | None:
        """As in :class:`AtOnce`."""
        return self.rate

    def faster(self, factor: float) -> Self:
        """As in :meth:`AtOnce.faster`."""
        return self.model_copy(update={"rate": _written(self.rate * factor)})

    def times(self, chance: Random) -> Iterator[float]:
        """As in :meth:`AtOnce.times`."""
        time = 0.0
        while True:
            time += gamma(chance, self.burstiness) / (self.burstiness * self.rate)
            yield time


class Replay(Kind):
    """When the first requests of a trace come; the workload ends with the trace."""

    kind: Literal["replay"] = "replay"
    trace: TraceSpec

    @property
    def mean_rate(self) -> float | None:
        """As in :class:`AtOnce`."""
        return None

    def faster(self, factor: float) -> Self:
        """As in :meth:`AtOnce.faster`."""
        return self.model_copy(update={"trace": self.trace.faster(factor)})

    def times(self, chance: Random) -> Iterator[float]:
        """As in :meth:`AtOnce.times`.

        Raises:
            TraceError: the trace is broken, or has no request.
        """
        request = None
        for request in self.trace.requests(estimated_tokens):
            yield request.at * self.trace.scale
        if request is None:
            raise TraceError(self.trace.file, None, NO_REQUEST)


Arrivals = Annotated[
    AtOnce | Interval | Poisson | Gamma | Replay,
    Field(discriminator="kind"),
    BeforeValidator(
        kind_reader(
            {
                "interval": single("seconds"),
                "poisson": single("rate"),
                "gamma": single("rate"),
                "replay": single("trace"),
            }
        )
    ),
]
"""``at_once``, ``{interval: 0.25}``, ``{poisson: {rate: 4}}``,
``{gamma: {rate: 4, burstiness: 0.5}}`` or ``{replay: trace.csv}``."""
