"""What the conformance kit prints when a property fails: in brief, the log once, the steps last."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import strategies as st

from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_testing import SchedulerConformance, Workload, requests, serve, workloads
from unit.faulty_schedulers import TokenBudgetScheduler
from unit.faulty_settings import FaultyTokenBudgetSettings, registry_of

FORKED = Request(id="B", prompt=(0, 1, 1), sampling=SamplingParams(n=2))


class RaisingScheduler(TokenBudgetScheduler):
    """Raises in the third step in which anything runs."""

    def schedule(self, now: float, /) -> Any:
        plan = super().schedule(now)
        if any(len(sequence.output) == 2 for sequence in plan.sequences):
            raise LookupError("the third token")
        return plan


class Kit(SchedulerConformance):
    component = "faulty"
    max_examples = 20

    def make_registry(self) -> Any:
        return registry_of("scheduler", RaisingScheduler, FaultyTokenBudgetSettings)


def notes_of(property_: Any, *strategies: st.SearchStrategy[Any]) -> list[str]:
    with pytest.raises((AssertionError, ValueError)) as raised:
        Kit().check(property_, *strategies)
    return raised.value.__notes__


def test_requests_are_printed_in_brief() -> None:
    def fails(request: Request, several: list[Request]) -> None:
        raise ValueError(request.id)

    (printed, *_) = notes_of(fails, st.just(FORKED), st.lists(requests(), min_size=2, max_size=2))
    assert "request=B(prompt 011, n=2)" in printed
    assert "several=[r0(prompt " in printed
    assert "best_of=None" not in printed
    assert "Request(" not in printed


def test_the_log_is_printed_once_and_the_steps_last(capsys: pytest.CaptureFixture[str]) -> None:
    def serves(workload: Workload) -> None:
        serve(Kit().make_engine(), workload)

    *others, last = notes_of(serves, workloads(max_aborts=0))
    assert capsys.readouterr().err.count("policies_restarted") == 1
    assert any(": r0(prompt " in each for each in others), "the workload, a line for each request"
    lines = last.splitlines()
    assert lines[0] == "the last steps:"
    assert lines[1].startswith("  step 0: runs r")
    assert lines[-1].startswith("  step 2: runs nothing, finished r")


def test_what_passes_prints_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    Kit().check(lambda text: sys.stderr.write(text) and None, st.just("seen"))
    assert "seen" in capsys.readouterr().err
