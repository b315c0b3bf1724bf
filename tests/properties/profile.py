"""Settings of Hypothesis, and the versions of a property for two runs of the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
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
    """Number of examples that a property is tried with, and their size."""

    max_examples: int
    is_long: bool

    def check(self, property_: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
        """Check a property with examples of ``strategies``."""

        @wraps(property_)
        def tried(**values: Any) -> None:  # Hypothesis decorates a function once
            property_(**values)

        given(*strategies)(profile(self.max_examples)(tried))()


def lengths(short: int, long: int) -> pytest.MarkDecorator:
    """Run a test with a ``length`` of so many examples, and in the long run with others."""
    made = [
        pytest.param(Length(short, is_long=False), id="short"),
        pytest.param(Length(long, is_long=True), id="long", marks=pytest.mark.long),
    ]
    return pytest.mark.parametrize("length", made)
