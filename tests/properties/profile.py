"""Settings of Hypothesis, and the short and the long version of a property."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def profile(max_examples: int) -> settings:
    """Try so many examples; to make one, and to serve it, may take long."""
    return settings(
        max_examples=max_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@dataclass(frozen=True)
class Length:
    """How many examples a property is tried with, and how large they may be."""

    max_examples: int
    is_long: bool

    def check(self, property_: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
        """Check a property with examples of ``strategies``."""
        given(*strategies)(profile(self.max_examples)(property_))()


def lengths(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a ``length`` of so many examples, and with a long one, which is slow."""
    made = [Length(short, is_long=False)]
    more = pytest.param(Length(long, is_long=True), marks=pytest.mark.slow)
    return pytest.mark.parametrize("length", [*made, more], ids=["short", "long"])
