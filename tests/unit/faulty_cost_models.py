"""Cost models that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from time import monotonic
from typing import Any

from paged_plugins.lab.cost_model import CostModel, StepWork
from unit.faulty_settings import with_another


class _Right(CostModel):
    def __init__(self, options: Any, context: Any, /) -> None:
        self.works: list[StepWork] = []

    def seconds(self, work: StepWork, /) -> float:
        tokens = work.prefill_tokens + work.decode_sequences
        return 0.01 + 1e-5 * tokens + 1e-8 * (work.prefill_pairs + work.decode_context)


class TightCostModel(_Right):
    """Has fewer blocks than none where the model does not fit."""

    def __init__(self, options: Any, context: Any, /) -> None:
        super().__init__(options, context)
        self._memory = options.limit

    def num_blocks(self, block_size: int, /) -> int:
        return 1000 * (self._memory - 50) // block_size


class EndlessCostModel(TightCostModel):
    """Serves sequences of no token where there is no limit."""

    num_blocks = _Right.num_blocks
    max_model_len = property(lambda own: own._memory - 1)  # type: ignore[assignment]


class KeyCostModel(_Right):
    """Keeps times by some parts of the work."""

    def seconds(self, work: StepWork, /) -> float:
        known: dict[tuple[int, int], float] = self.__dict__.setdefault("known", {})
        key = work.prefill_tokens % 64, work.sampled_rows % 2
        return known.setdefault(key, super().seconds(work))


class CachedCostModel(_Right):
    """Keeps parts of times with its class, for each that is made."""

    @lru_cache(8)  # noqa: B019 - it is full before others ask
    def _of_tokens(self, tokens: int) -> float:
        return 0.0 * tokens

    def seconds(self, work: StepWork, /) -> float:
        return super().seconds(work) + self._of_tokens(work.prefill_tokens % 8)


def _seconds(own: Any, work: StepWork) -> float:
    return _Right.seconds(own, work)


WRONG_SECONDS = {
    "FreeCostModel": lambda own, work: _seconds(own, work) - 0.01,
    "OverflowingCostModel": lambda own, work: (
        _seconds(own, work) if work.prefill_pairs < 1e12 else inf
    ),
    "SpacedCostModel": lambda own, work: _seconds(own, work) if work.decode_context < 1e6 else inf,
    # has another path for more than 256 sequences
    "EagerCostModel": lambda own, work: (
        _seconds(own, work) - (0.005 if work.decode_sequences > 256 else 0)
    ),
    # reads much at a higher rate
    "FasterCostModel": lambda own, work: (
        _seconds(own, work) - (work.decode_context > 100_000) * 5e-10 * work.decode_context
    ),
    # pads decodes to multiples of 16, unless a prompt is there
    "PaddingCostModel": lambda own, work: (
        _seconds(own, work) + (0 if work.prefill_tokens else 1e-3 * (-work.decode_sequences % 16))
        if work.decode_sequences > 256
        else _seconds(own, work)
    ),
    # goes over all tokens
    "LoopingCostModel": lambda own, work: (
        _seconds(own, work) + 1e-9 * sum(1 for _ in range(work.prefill_tokens % (1 << 21)))
    ),
    # keeps the work of each step
    "KeepingCostModel": lambda own, work: own.works.append(work) or _seconds(own, work),
    # times go by the hash of a text
    "HashingCostModel": lambda own, work: _seconds(own, work) + hash("a text") % 99_991,
    # asks the clock, to no effect
    "ClockCostModel": lambda own, work: _seconds(own, work) + (monotonic() < 0),
}
WRONG_BLOCKS = {
    "FractionalCostModel": lambda own, size: 1e6 / size,
    "OwnSizeCostModel": lambda own, size: 4096,
    "NegativeCostModel": lambda own, size: 1000 - 100 * size,
}
WRONG_LENGTHS = {
    "FloatLengthCostModel": property(lambda own: 4096.0),
    "UncalledCostModel": lambda own: 4096,
}
globals().update(with_another(__name__, _Right, "seconds", WRONG_SECONDS))
globals().update(with_another(__name__, _Right, "num_blocks", WRONG_BLOCKS))
globals().update(with_another(__name__, _Right, "max_model_len", WRONG_LENGTHS))
