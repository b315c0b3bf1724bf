"""The executor ``simulated``: its clock, its capacity, what it draws and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from paged_core.engine.clock import VirtualClock
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import PluginError, SettingsError
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_plugins.lab.cost_model import StepWork
from paged_plugins.lab.cost_models.linear import LinearCost
from paged_plugins.lab.runs.work_count import WatchedExecutor
from unit.lab_runs import REGISTRY, simulated


def engine(clock: Any = None, **values: Any) -> Engine:
    return build_engine(simulated(**values), REGISTRY, clock=clock)


def serve(one: Engine, **sampling: Any) -> Any:
    asked = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **sampling})
    group = one.add(Request(id="A", prompt=tuple(range(10)), sampling=asked))
    while one.has_unfinished:
        one.step()
    return group


def test_its_clock_is_the_engines_and_moves_by_the_time_of_each_step() -> None:
    one = engine()
    group = serve(one)
    assert (group.admitted_at, group.first_token_at, group.finished_at) == (0.0, 1.0, 4.0)
    assert one.clock() == 4.0


def test_a_given_clock_that_can_sleep_is_moved_instead() -> None:
    clock = VirtualClock(100.0)
    assert serve(engine(clock)).finished_at == 104.0
    assert clock() == 104.0
    assert serve(engine(lambda: 7.0)).finished_at == 7.0, "a clock that cannot is left alone"


def test_steps_that_are_planned_ahead_follow_each_other_without_a_gap() -> None:
    assert serve(engine(async_scheduling=True)).finished_at == 4.0


def test_the_cost_model_says_how_much_fits_unless_the_settings_do() -> None:
    roomy = engine(num_blocks=None, cost_model="roofline").capacity
    assert roomy.max_model_len == 131_072
    assert roomy.num_blocks * 4 > 131_072
    short = engine(num_blocks=10, cost_model="roofline").capacity
    assert (short.num_blocks, short.max_model_len) == (10, 40)
    assert engine(num_blocks=None).capacity.num_blocks * 4 == 65_536
    assert engine(max_model_len=32).capacity.max_model_len == 32
    assert engine(preemption="swap").capacity.num_host_blocks == 64


def test_more_blocks_than_can_be_kept_account_of_are_refused() -> None:
    with pytest.raises(SettingsError, match="4,000,000 blocks at most"):
        engine(num_blocks=5_000_000)


@pytest.mark.parametrize("answer", [-1.0, 0, float("nan"), float("inf"), None, "1", True])
def test_a_time_that_no_step_takes_ends_the_requests_and_names_the_cost_model(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinearCost, "seconds", lambda self, work: answer)
    (sequence,) = serve(engine()).sequences
    assert sequence.finish_reason is FinishReason.ERROR
    told = f"executor 'simulated': cost_model 'linear' answered {answer!r}; seconds() has to return"
    assert sequence.error.startswith(f"{told} the seconds of a step, above 0 ")


def test_a_cost_model_that_raises_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, work: StepWork) -> float:
        raise KeyError("a typo")

    monkeypatch.setattr(LinearCost, "seconds", fails)
    (sequence,) = serve(engine()).sequences
    start = f"executor 'simulated': cost_model 'linear' raised KeyError: 'a typo' (at {__file__}:"
    assert sequence.error.startswith(start)
    assert sequence.error.endswith(" in fails)"), "the line is told once"


@pytest.mark.parametrize("answer", [0, -3, 2.5, "8", True])
def test_a_size_that_is_none_is_refused_and_names_the_cost_model(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinearCost, "num_blocks", lambda self, size: answer)
    with pytest.raises(PluginError, match=r"cost_model 'linear' answered .*; num_blocks"):
        engine(num_blocks=None)
    monkeypatch.setattr(LinearCost, "max_model_len", answer)
    with pytest.raises(PluginError, match=r"cost_model 'linear' answered .*; max_model_len has"):
        engine()


def test_sampled_sequences_differ_and_greedy_ones_do_not() -> None:
    sampled = serve(engine(), n=3, temperature=1.0).sequences
    assert len({tuple(each.output) for each in sampled}) == 3
    greedy = serve(engine(), n=3).sequences
    assert len({tuple(each.output) for each in greedy}) == 1


def test_log_probabilities_are_reported_and_repeatable() -> None:
    one, other = (serve(engine(), logprobs=2).sequences[0] for _ in range(2))
    assert one.logprobs == other.logprobs
    assert [next(iter(entry)) for entry in one.logprobs] == one.output
    assert serve(engine(), n=1, best_of=3, temperature=1.0).sequences[0].score is not None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs need a model"),
        ({"logits_processors": [lambda tokens, logits: logits]}, "logits_processors need logits"),
    ],
)
def test_what_needs_logits_fails_with_the_reason(asked: dict[str, Any], reason: str) -> None:
    (sequence,) = serve(engine(), **asked).sequences
    assert sequence.finish_reason is FinishReason.ERROR
    assert reason in sequence.error


def test_it_says_what_each_step_computed() -> None:
    one, seen = engine(scheduler={"name": "token_budget", "max_num_batched_tokens": 8}), []
    one.executor.watch = seen.append  # type: ignore[attr-defined]
    serve(one, n=2, temperature=1.0)
    assert seen[:3] == [
        StepWork(prefill_tokens=8, prefill_sequences=1, prefill_pairs=36),
        StepWork(
            prefill_tokens=2,
            prefill_sequences=1,
            prefill_pairs=19,
            prefill_context=8,
            sampled_rows=1,
        ),
        StepWork(decode_sequences=2, decode_context=20, sampled_rows=2, copied_blocks=1),
    ]


def test_a_simulation_imports_no_torch() -> None:
    code = (
        "import sys; from unit.lab_runs import *; run([asks('A', 9, 3)]); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, 'tests'); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("ahead", [False, True])
def test_repeated_batches_are_counted_like_all_others(preemption: str, ahead: bool) -> None:
    one = engine(
        num_blocks=16,
        num_host_blocks=24,
        preemption=preemption,
        scheduler="prefill_or_decode" if preemption == "swap" else "token_budget",
        async_scheduling=ahead,
    )
    expected: list[StepWork] = []
    found: list[StepWork] = []
    simulated_executor: Any = one.executor
    simulated_executor.watch = found.append
    watched = WatchedExecutor(simulated_executor)
    watched.watch = expected.append
    one.executor = watched
    asked = [{}, {"n": 2, "temperature": 1.0}, {"beam_width": 2, "temperature": 0.0}, {}, {}]
    groups = []
    for number, sampling in enumerate(asked * 2):
        length = 3 + 5 * number % 11
        sampling = {"max_tokens": 9 + 7 * number % 9, "ignore_eos": True, **sampling}
        prompt = tuple(range(100 * number, 100 * number + length))
        request = Request(id=str(number), prompt=prompt, sampling=SamplingParams(**sampling))
        groups.append(one.add(request))
        for _ in range(number // 3):
            one.step()
    while one.has_unfinished:
        one.step()
    assert one.metrics.num_preemptions
    for work in (*expected, *found):
        work.after_idle = 0
    assert found == expected
    drawn = [s.tokens for g in groups if g.request.sampling.n == 1 for s in g.sequences]
    assert all(len(set(tokens)) == len(tokens) for tokens in drawn)
