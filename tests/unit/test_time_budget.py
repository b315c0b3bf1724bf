"""Scheduler ``time_budget``: chunks of prompts by a limit on the predicted time of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paged_core.engine.wiring import build_engine
from paged_core.interfaces.step_work import StepWork
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.settings.schema import settings_class
from paged_plugins.lab.simulation import SimulatedExecutor
from paged_testing.workloads import simple_request

REGISTRY = Registry.discover()
FIXED, PER_TOKEN, PER_PAIR = 0.01, 1e-4, 1e-8


def work_of_steps(*batches: list[Request], **options: Any) -> list[StepWork]:
    """Serve requests that arrive together, then others, once these have ended."""
    costs = {"fixed": FIXED, "per_prefill_token": PER_TOKEN, "per_prefill_pair": PER_PAIR}
    settings = settings_class(REGISTRY)(
        executor="simulated",
        num_blocks=4096,
        scheduler={"name": "time_budget", **options},
        cost_model={"name": "linear", **costs},
    )
    engine = build_engine(settings, REGISTRY)
    assert isinstance(engine.executor, SimulatedExecutor)
    works: list[StepWork] = []
    engine.executor.watch = works.append
    for requests in batches:
        for request in requests:
            engine.add(request)
        while engine.has_unfinished:
            engine.step()
    engine.close()
    return works


def of(*lengths: int) -> list[Request]:
    return [simple_request(f"r{number}", length, 40) for number, length in enumerate(lengths)]


def seconds(work: StepWork) -> float:
    decodes = 5e-5 * work.decode_sequences + 8e-8 * work.decode_context
    return FIXED + PER_TOKEN * work.prefill_tokens + PER_PAIR * work.prefill_pairs + decodes


def test_steps_keep_the_limit_and_fill_it() -> None:
    works = work_of_steps(of(30, 50, 6000, 40, 9000), max_step_seconds=0.05)
    times = [seconds(work) for work in works if work.prefill_tokens]
    assert max(times) <= 0.05
    assert sum(time > 0.0495 for time in times) > 0.9 * len(times)  # not where a prompt ends
    chunks = [work.prefill_tokens for work in works if work.prefill_context > 5000]
    assert max(chunks) < 300 < max(work.prefill_tokens for work in works)


def test_the_context_of_a_prefix_hit_is_foreseen() -> None:
    (first,) = of(6000)
    longer = replace(first, id="longer", prompt=(*first.prompt, *range(1000, 3000)))
    works = work_of_steps([first], [longer], max_step_seconds=0.05)
    (hit,) = (work for work in works if work.prefill_context == 6000)
    assert 0.0495 < seconds(hit) <= 0.05


@pytest.mark.parametrize("least", [1, 16])
def test_prompts_advance_however_long_a_step_takes(least: int) -> None:
    works = work_of_steps(of(64), max_step_seconds=0.001, min_prefill_tokens=least)
    assert [work.prefill_tokens for work in works[: 64 // least - 1]] == [least] * (64 // least - 1)


def test_sequences_that_decode_do_so_in_each_step() -> None:
    works = work_of_steps(of(10, 10, 3000), max_step_seconds=0.03)
    assert all(work.decode_sequences == 2 for work in works[1:10])
