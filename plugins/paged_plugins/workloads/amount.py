"""Amounts and other parts of a specification: how they are written, checked and drawn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import exp, log, log1p, sqrt
from random import Random
from statistics import NormalDist
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from paged_core.errors import did_you_mean

T = TypeVar("T")
_NORMAL = NormalDist()
MOST = 10_000_000
"""Largest amount; a larger one is taken for a typing error."""
_MOST_RANKS = 100_000


class SpecModel(BaseModel):
    """A part of a specification: frozen, comparable, picklable; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Kind(SpecModel):
    """One of several kinds of a part, written ``KIND`` or ``{KIND: {its keys}}``.

    A subclass makes ``kind`` a literal with its name.
    """

    kind: str

    @model_serializer(mode="wrap")
    def _as_written(self, fields: SerializerFunctionWrapHandler) -> Any:
        values = fields(self)
        values.pop("kind", None)
        return {self.kind: values} if values else self.kind


def kind_reader(
    short: Mapping[str, Callable[[Any], Mapping[str, Any]]], bare: str | None = None
) -> Callable[[Any], Any]:
    """Return what reads ``KIND``, ``{KIND: {keys}}`` and short forms as pydantic wants them.

    Args:
        short: by kind, the keys that a value which is no mapping stands for: ``{interval: 0.5}``.
        bare: the kind that a bare number is.
    """

    def read(value: Any) -> Any:
        if isinstance(value, Kind):
            return value
        if isinstance(value, str):
            return {"kind": value}
        if bare is not None and isinstance(value, int | float) and not isinstance(value, bool):
            return {"kind": bare, **short[bare](value)}
        if not isinstance(value, Mapping) or len(value) != 1:
            raise PydanticCustomError("kind", "give one kind, as in `kind: {key: value}`")
        ((kind, options),) = value.items()
        if options is None:
            return {"kind": kind}
        if isinstance(options, Mapping):
            if "kind" in options:
                raise PydanticCustomError("kind", "there is no key `kind`")
            return {"kind": kind, **options}
        if kind not in short:
            known = did_you_mean(str(kind), short) if short else ""
            raise PydanticCustomError(
                "kind", f"{kind!r:.40} takes keys, as in `{{key: value}}`{known}"
            )
        return {"kind": kind, **short[kind](options)}

    return read


def pair(first: str, second: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return what reads ``[A, B]`` as the keys ``first`` and ``second``."""

    def read(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise PydanticCustomError("pair", "give two numbers, as in `[1, 8]`")
        return {first: value[0], second: value[1]}

    return read


def single(key: str) -> Callable[[Any], Mapping[str, Any]]:
    """Return what reads a value as the one of ``key``."""
    return lambda value: {key: value}


def stream(seed: int, aspect: str) -> Random:
    """Return the stream of an aspect, independent of all others.

    Equal seeds give equal workloads in every process and version, and a change of one aspect (the
    rate of arrivals, say) leaves the numbers of the others as they were, which are then common to
    the runs that are compared. Therefore only ``random()`` of what is returned is used: Python
    promises that it gives the same numbers in every version, and promises it for nothing else.
    """
    return Random(f"{aspect} {seed}")  # a string is hashed with SHA-512: no seeds are neighbours


class Choice(Generic[T]):
    """Draws one of several values, each with a chance in proportion to its weight."""

    def __init__(self, weights: Mapping[T, float]) -> None:
        self._values = list(weights)
        self._limits = list(accumulate(weights.values()))

    def __call__(self, share: float) -> T:
        """Return the value at a share (0 to 1, below 1) of all weights."""
        place = bisect_right(self._limits, share * self._limits[-1], hi=len(self._values) - 1)
        return self._values[place]


def distinct(chance: Random, values: Sequence[T], count: int) -> list[T]:
    """Return ``count`` of the values in random order, none of them twice."""
    pool = list(values)
    for place in range(count):
        other = place + int(chance.random() * (len(pool) - place))
        pool[place], pool[other] = pool[other], pool[place]
    return pool[:count]


def gamma(chance: Random, shape: float) -> float:
    """Return a gamma variate of mean ``shape`` and scale 1.

    Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); a shape below 1 by
    their power of a uniform variate.
    """
    if shape < 1:
        return gamma(chance, shape + 1) * exp(log1p(-chance.random()) / shape)
    d = shape - 1 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = _NORMAL.inv_cdf(1 - chance.random() or 0.5)
        v = (1 + c * x) ** 3
        if v > 0 and log(1 - chance.random()) < x * x / 2 + d - d * v + d * log(v):
            return d * v


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
    """Shares of the whole distribution below ``min`` and below ``max``."""

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


def _whole(amount: Any) -> Any:
    """Refuse numbers that are written and are no counts."""
    written = {"fixed": ("value",), "uniform": ("low", "high")}.get(amount.kind, ())
    for value in (getattr(amount, name) for name in written):
        if value < 1 or value != int(value):
            raise PydanticCustomError("whole", f"give a whole number of at least 1, not {value:g}")
    return amount


Count = Annotated[Amount, AfterValidator(_whole)]
"""An amount of things: what is drawn is rounded, what is written is a whole number."""


def _check_order(low: float, high: float) -> None:
    if high < low:
        raise PydanticCustomError("order", "the first bound is above the second; exchange them")
