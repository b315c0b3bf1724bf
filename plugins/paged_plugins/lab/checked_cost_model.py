"""A cost model whose faults are named, so that no simulation goes on with what it made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NoReturn

from paged_core.errors import PluginError, SettingsError, error_text
from paged_plugins.lab.cost_model import CostModel, StepWork

_MOST_SECONDS = 1e9
"""Longest step: more is taken for a mistake."""


class CheckedCostModel(CostModel):
    """Passes calls on to a cost model.

    Args:
        name: of its component.

    Raises:
        PluginError: from its methods: the cost model raised, or its answer is no possible one.
        SettingsError: from those that size the cache, as the cost model raised it.
    """

    def __init__(self, inner: CostModel, name: str) -> None:
        self._inner = inner
        self._what = f"cost_model {name!r}"

    def seconds(self, work: StepWork, /) -> float:
        with self._named():
            seconds = self._inner.seconds(work)
        if type(seconds) is bool or not isinstance(seconds, int | float) or not 0 < seconds < inf:
            self._refuse(seconds, "seconds() has to return the seconds of a step, above 0")
        if seconds > _MOST_SECONDS:
            raise PluginError(
                f"{self._what}: a step would take more than {_MOST_SECONDS:g} s; change its options"
            )
        return seconds

    def num_blocks(self, block_size: int, /) -> int | None:
        with self._named(SettingsError):
            count = self._inner.num_blocks(block_size)
        return self._count(count, "num_blocks() has to return")

    @property
    def max_model_len(self) -> int | None:
        with self._named(SettingsError):
            length = self._inner.max_model_len
        return self._count(length, "max_model_len has to be")

    def _count(self, answer: int | None, rule: str) -> int | None:
        if answer is not None and (type(answer) is not int or answer < 1):
            self._refuse(answer, f"{rule} an int, 1 or more, or None")
        return answer

    def _refuse(self, answer: Any, rule: str) -> NoReturn:
        raise PluginError(
            f"{self._what} answered {answer!r:.80}; {rule} "
            "(paged_plugins.lab.testing.CostModelConformance tests it)"
        )

    @contextmanager
    def _named(self, *told: type[Exception]) -> Iterator[None]:
        """Name the cost model in what it raises, but for ``told``, which are meant for the user."""
        try:
            yield
        except told:
            raise
        except Exception as error:
            raise PluginError(f"{self._what} raised {error_text(error)}") from error
