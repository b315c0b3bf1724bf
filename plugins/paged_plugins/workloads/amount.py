"""Amounts: a number, or a distribution to draw one from: tokens, seconds, turns."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import exp, log, log1p
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.spec_model import Kind, kind_reader, pair, single

MOST = 10_000_000
"""Largest amount; a larger one is taken for a typing error."""
_MOST_RANKS = 100_000
_NORMAL = NormalDist()

Bounded = Annotated[float, Field(ge=0, le=MOST)]
Positive = Annotated[float, Field(gt=0, le=MOST)]


class _Distribution(Kind):
    """Drawn by inversion: each amount takes one number from the stream of random numbers, so that
    a change of its parameters moves the amounts, and not those that are drawn after them."""

    def quantile(self, share: float) -> float:
        """Return the amount that a share of all (0 to 1, below 1) does not exceed."""
        raise NotImplementedError

    def whole(self, share: float) -> int:
        """Return the quantile as a whole number, at least 1."""
        return max(1, round(self.quantile(share)))


class Fixed(_Distribution):
    """Always the same."""

    kind: Literal["fixed"] = "fixed"
    value: Bounded

    def quantile(self, share: float) -> float:
        return self.value


class Uniform(_Distribution):
    """Equally likely between two bounds; both are included where it is a whole number."""

    kind: Literal["uniform"] = "uniform"
    low: Bounded
    high: Bounded

    @model_validator(mode="after")
    def _in_order(self) -> Uniform:
        _check_order(self.low, self.high)
        return self

    def quantile(self, share: float) -> float:
        return self.low + share * (self.high - self.low)

    def whole(self, share: float) -> int:
        return max(1, int(self.low + share * (self.high - self.low + 1)))


class Exponential(_Distribution):
    """Many small amounts, few large ones: the time between events that are independent."""

    kind: Literal["exponential"] = "exponential"
    mean: Positive

    def quantile(self, share: float) -> float:
        return -self.mean * log1p(-share)


class Zipf(_Distribution):
    """1, 2, 3 ... up to ``max``: the chance of a number falls with its power ``exponent``.

    BurstGPT (Wang et al., KDD 2025) finds request lengths distributed so.
    """

    kind: Literal["zipf"] = "zipf"
    exponent: Annotated[float, Field(gt=0, le=100)] = 1.0
    max: Annotated[int, Field(ge=1, le=_MOST_RANKS)]
    _cumulative: list[float] = PrivateAttr()

    def model_post_init(self, _: Any, /) -> None:
        self._cumulative = list(accumulate(k**-self.exponent for k in range(1, self.max + 1)))

    def quantile(self, share: float) -> float:
        return 1 + bisect_left(self._cumulative, share * self._cumulative[-1], hi=self.max - 1)


class LogNormal(_Distribution):
    """The logarithm is normal with standard deviation ``sigma``; only between ``min`` and ``max``.

    ``median`` is that of the whole distribution, before it is cut at the bounds.
    """

    kind: Literal["lognormal"] = "lognormal"
    median: Positive
    sigma: Annotated[float, Field(gt=0, le=10)]
    min: Positive = 1.0
    max: Positive = float(MOST)
    _shares: tuple[float, float] = PrivateAttr()
    """Of the whole distribution, below ``min`` and below ``max``."""

    def model_post_init(self, _: Any, /) -> None:
        self._shares = (self._below(self.min), self._below(self.max))

    @model_validator(mode="after")
    def _in_order(self) -> LogNormal:
        _check_order(self.min, self.max)
        low, high = self._shares
        if high - low < 1e-6:
            raise PydanticCustomError("bounds", "nearly nothing lies between `min` and `max`")
        return self

    def quantile(self, share: float) -> float:
        low, high = self._shares
        inside = low + share * (high - low)
        if not 0 < inside < 1:
            return self.max if inside else self.min
        amount = self.median * exp(self.sigma * _NORMAL.inv_cdf(inside))
        return min(max(amount, self.min), self.max)

    def _below(self, amount: float) -> float:
        return _NORMAL.cdf(log(amount / self.median) / self.sigma)


Amount = Annotated[
    Fixed | Uniform | Exponential | Zipf | LogNormal,
    Field(discriminator="kind"),
    BeforeValidator(
        kind_reader(
            {
                "fixed": single("value"),
                "uniform": pair("low", "high"),
                "exponential": single("mean"),
            },
            bare="fixed",
        )
    ),
]
"""``512``, ``{uniform: [64, 512]}``, ``{exponential: 2.5}``, ``{zipf: {exponent: 1.2, max: 4096}}``
or ``{lognormal: {median: 90, sigma: 1.1, max: 1024}}``."""


def _check_order(low: float, high: float) -> None:
    if high < low:
        raise PydanticCustomError("order", "the first bound is above the second; exchange them")
