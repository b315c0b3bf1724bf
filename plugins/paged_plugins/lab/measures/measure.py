"""The numbers that a run is judged by: throughput, latencies, cache, memory, fairness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

GOODPUT: Final = "goodput_per_s"
"""The measure that limits on latencies make: requests within all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number that a run is judged by."""

    name: str
    title: str
    unit: str
    """``share``: 0 to 1, and differences are points of a hundred; ``""``: a count or a ratio."""
    better: Literal["higher", "lower"] | None = None
    """Which way is better; ``None``: neither, it explains others."""
    shown: bool = False
    """Whether a table shows it without being asked."""

    @property
    def is_share(self) -> bool:
        """Whether differences are given in points rather than in percent."""
        return self.unit == "share"


def _latencies() -> Iterator[Measure]:
    shown = {"ttft_ms_p50", "ttft_ms_p99", "tpot_ms_p50", "e2e_ms_p50"}
    titles = {"e2e": "completion", "ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
    for kind, title in (titles | {"queueing": "queueing"}).items():
        for part in ("mean", "p50", "p90", "p99"):
            name = f"{kind}_ms_{part}"
            if name != "itl_ms_mean":
                yield Measure(
                    name=name,
                    title=f"{title} {part}",
                    unit="ms",
                    better="lower",
                    shown=name in shown,
                )


def _all() -> Iterator[Measure]:
    yield Measure(name=GOODPUT, title="goodput", unit="requests/s", better="higher", shown=True)
    yield Measure(
        name="throughput_tokens_per_s",
        title="throughput",
        unit="tokens/s",
        better="higher",
        shown=True,
    )
    yield Measure(
        name="requests_per_s", title="requests served", unit="requests/s", better="higher"
    )
    yield Measure(
        name="missed_deadlines", title="missed deadlines", unit="share", better="lower", shown=True
    )
    yield Measure(name="hit_rate", title="hit rate", unit="share", better="higher", shown=True)
    yield from _latencies()
    yield Measure(name="preemptions", title="preemptions", unit="", better="lower", shown=True)
    yield Measure(
        name="recomputed_tokens", title="recomputed tokens", unit="", better="lower", shown=True
    )
    yield Measure(name="evictions", title="evictions", unit="", better="lower", shown=True)
    yield Measure(name="held_share", title="memory held", unit="share")
    yield Measure(name="reserved_share", title="memory reserved", unit="share", better="lower")
    yield Measure(
        name="internal_share", title="internal fragmentation", unit="share", better="lower"
    )
    yield Measure(
        name="external_share", title="external fragmentation", unit="share", better="lower"
    )
    yield Measure(name="jain", title="Jain index", unit="", better="higher")
    yield Measure(name="max_slowdown", title="max slowdown", unit="", better="lower")
    yield Measure(name="steps", title="steps", unit="")
    yield Measure(name="idle_share", title="idle", unit="share")
    yield Measure(name="makespan_s", title="makespan", unit="s", better="lower")
    yield Measure(name="failed", title="failed requests", unit="", better="lower", shown=True)


MEASURES: Final[Mapping[str, Measure]] = MappingProxyType({each.name: each for each in _all()})
"""All of them, by name, the most important first."""
