"""Clocks, and which of them an engine uses."""

from __future__ import annotations

from time import monotonic

import pytest

from paged_core.engine.clock import Clock, SystemClock, VirtualClock
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams


def test_the_time_of_this_machine() -> None:
    clock = SystemClock()
    before = clock()
    clock.sleep(0.002)
    assert before + 0.002 <= clock() <= monotonic()


def test_virtual_time_passes_when_told() -> None:
    clock = VirtualClock(5.0)
    clock.sleep(1e9)
    clock.sleep(-1.0)
    assert clock() == 5.0 + 1e9


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()])
def test_clocks_are_clocks(clock: object) -> None:
    assert isinstance(clock, Clock)


def test_latencies_are_measured_on_the_given_clock() -> None:
    clock = VirtualClock(100.0)
    with LLM(executor="memory", tokenizer="none", num_blocks=64, clock=clock) as llm:
        output = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4))[0]
    assert output.metrics.arrival == output.metrics.finished == 100.0
