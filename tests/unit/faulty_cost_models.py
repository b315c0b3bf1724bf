"""Cost models that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

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


def _seconds(own: Any, work: StepWork) -> float:
    return _Right.seconds(own, work)


WRONG_SECONDS = {
    "FreeCostModel": lambda own, work: _seconds(own, work) - 0.01,
    "OverflowingCostModel": lambda own, work: (
        _seconds(own, work) if work.prefill_pairs < 1e12 else inf
    ),
    "SpacedCostModel": lambda own, work: _seconds(own, work) if work.decode_context < 1e6 else inf,
    "FallingCostModel": lambda own, work: (
        _seconds(own, work) - (0.005 if work.decode_context > 200_000 else 0)
    ),
    # has another path for more than 256 sequences
    "EagerCostModel": lambda own, work: (
        _seconds(own, work) - (0.005 if work.decode_sequences > 256 else 0)
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
    "NegativeCostModel": lambda own, size: 1000 - 100 * size,
}
WRONG_LENGTHS = {
    "FloatLengthCostModel": property(lambda own: 4096.0),
    "UncalledCostModel": lambda own: 4096,
}
globals().update(with_another(__name__, _Right, "seconds", WRONG_SECONDS))
globals().update(with_another(__name__, _Right, "num_blocks", WRONG_BLOCKS))
globals().update(with_another(__name__, _Right, "max_model_len", WRONG_LENGTHS))
