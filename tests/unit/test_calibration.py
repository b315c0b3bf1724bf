"""Calibration finds what a step costs; the engine that it measures is simulated, and so exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from paged_core.engine.clock import Clock
from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.calibration.calibrate import (
    MeasuredStep,
    Measurement,
    calibrate,
    fit,
    kind_of,
    measure,
    relative_errors,
)
from paged_plugins.lab.calibration.scenes import (
    Scene,
    choose_scenes,
    choose_swap_scenes,
    fork_scenes,
    swap_settings,
)
from paged_plugins.lab.commands.calibrate import COMPARED, validate
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.linear import PARTS, LinearCost
from paged_plugins.lab.cost_models.weights_file import read_weights, write_weights
from paged_plugins.lab.settings import LinearSettings
from unit.lab_runs import REGISTRY, simulated

pytestmark = pytest.mark.heavy


PLANTED = {
    "fixed": 2e-3,
    "per_prefill_token": 4e-5,
    "per_prefill_sequence": 3e-4,
    "per_prefill_pair": 5e-8,
    "per_prefill_context": 1e-6,
    "per_decode_sequence": 3e-5,
    "per_context_token": 4e-7,
    "per_sampled_row": 2e-5,
    "wake": 1e-3,
    "per_copied_block": 6e-5,
    "per_swapped_block": 9e-5,
}
MODEL = {"name": "linear", **PLANTED}


def roomy() -> EngineSettings:
    return simulated(cost_model=MODEL, block_size=16, num_blocks=1000, max_model_len=1500)


def measured(settings: EngineSettings, choose: Callable[[Engine], list[Scene]]) -> Measurement:
    engine = build_engine(settings, REGISTRY)
    try:
        assert isinstance(engine.clock, Clock)
        return measure(engine, choose(engine), repeats=1, clock=engine.clock)
    finally:
        engine.close()


@cache
def ordinary() -> Measurement:
    return measured(roomy(), lambda engine: choose_scenes(engine, 200))


@cache
def swapping() -> Measurement:
    return measured(swap_settings(roomy(), REGISTRY, 1500), choose_swap_scenes)


def drawn(random: Random) -> StepWork:
    tokens, decodes = random.choice([0, random.randint(2, 2000)]), random.choice([0, 1, 8, 64])
    tokens = tokens or (0 if decodes else 64)
    context = random.choice([0, 500])
    return StepWork(
        prefill_tokens=tokens,
        prefill_sequences=random.randint(1, 4) if tokens else 0,
        prefill_pairs=tokens * (tokens + 1) // 2 + tokens * context,
        prefill_context=context if tokens else 0,
        decode_sequences=decodes,
        decode_context=decodes * random.randint(10, 1500),
        sampled_rows=decodes + (random.random() < 0.5),
        after_idle=int(random.random() < 0.3),
        copied_blocks=random.choice([0, 0, 7]),
        swapped_blocks=random.choice([0, 0, 16]),
    )


def planted(work: StepWork) -> float:
    return PLANTED["fixed"] + sum(PLANTED[w] * getattr(work, part) for w, part in PARTS.items())


def test_planted_weights_are_found_through_noise_and_outliers() -> None:
    random = Random(1)
    steps = []
    for number in range(600):
        work = drawn(random)
        noise = 5.0 if number % 20 == 0 else random.gauss(1, 0.03)
        steps.append(MeasuredStep(work, planted(work) * noise))
    found = fit(steps)
    for work in (drawn(random) for _ in range(50)):
        predicted = found["fixed"] + sum(found[w] * getattr(work, p) for w, p in PARTS.items())
        assert predicted == pytest.approx(planted(work), rel=0.05)
    assert min(found.values()) >= 0


def test_a_part_that_costs_nothing_has_no_weight() -> None:
    random = Random(2)
    works = [drawn(random) for _ in range(200)]
    found = fit([MeasuredStep(work, 1e-3 + 1e-5 * work.prefill_tokens) for work in works])
    assert found["fixed"] == pytest.approx(1e-3, rel=0.01)
    assert found["per_prefill_token"] == pytest.approx(1e-5, rel=0.01)
    assert found["per_context_token"] < 1e-9


def test_an_engine_of_known_costs_is_predicted_and_so_are_its_runs(tmp_path: Path) -> None:
    swaps = swapping()
    found = calibrate(ordinary(), roomy(), swaps=swaps, origin={"model": "planted"})
    slow = [[replace(step, seconds=2 * step.seconds) for step in scene] for scene in swaps.scenes]
    other = calibrate(ordinary(), roomy(), swaps=replace(swaps, scenes=slow)).weights
    changed = {name for name, weight in found.weights.items() if other[name] != weight}
    assert changed == {"per_swapped_block"}, "all else is that of the engine itself"
    assert found.measured["steps"] > 150
    assert not found.unmeasured
    for name in ("per_copied_block", "per_swapped_block"):
        assert found.weights[name] == pytest.approx(PLANTED[name], rel=0.01)
    assert (found.max_model_len, found.num_tokens) == (1500, 16_000)
    assert len(found.errors) == 7, "every kind of step is held out somewhere"
    assert all(each["p90"] < 0.001 for each in found.errors.values())
    path = tmp_path / "weights.yaml"
    write_weights(path, found)
    copy = simulated(
        cost_model={"name": "linear", "file": path},
        block_size=16,
        num_blocks=None,
        max_model_len=None,
    )
    checks = list(validate(roomy(), copy, REGISTRY, num_requests=8, seed=3, repeats=1))
    assert len(checks) == 4 * len(COMPARED)
    assert max(abs(check.error) for check in checks) < 0.001
    slower = simulated(cost_model={**MODEL, "fixed": 4e-3}, block_size=16, num_blocks=1000)
    off = [
        check.error
        for check in validate(roomy(), slower, REGISTRY, num_requests=8, seed=3, repeats=1)
    ]
    assert max(map(abs, off)) > 0.1


def test_what_could_not_be_measured_is_said_with_the_reason(tmp_path: Path) -> None:
    steps = Measurement(
        scenes=[
            [step for step in scene if not step.work.copied_blocks] for scene in ordinary().scenes
        ],
        max_model_len=1500,
        num_tokens=16_000,
    )
    found = calibrate(steps, roomy(), reasons={"per_swapped_block": "the host is full"})
    assert found.unmeasured == {
        "per_copied_block": "no step that was measured has copied blocks",
        "per_swapped_block": "the host is full",
    }
    assert not set(found.unmeasured) & set(found.weights)
    path = tmp_path / "weights.yaml"
    write_weights(path, found)
    assert read_weights(path).unmeasured == found.unmeasured
    assert LinearCost(LinearSettings(file=path), CostModelContext(settings=roomy())).seconds(
        StepWork(swapped_blocks=9)
    ) == pytest.approx(found.weights["fixed"])


def test_steps_beyond_those_that_were_measured_are_told_of(tmp_path: Path) -> None:
    found, path = calibrate(ordinary(), roomy()), tmp_path / "weights.yaml"
    write_weights(path, found)
    model = LinearCost(LinearSettings(file=path), CostModelContext(settings=roomy()))
    most = int(found.largest["decode_sequences"])
    with capture_logs() as logs:
        works = [StepWork(decode_sequences=most + more) for more in (0, 1, 1)]
        assert [model.is_extrapolated(each) for each in works] == [False, True, True]
    assert [log["event"] for log in logs] == ["times_extrapolated"]
    # an older file says how long a sequence may be alone
    write_weights(path, found.model_copy(update={"largest": {}}))
    model = LinearCost(LinearSettings(file=path), CostModelContext(settings=roomy()))
    for length in (1500, 1501):
        pairs = length * (length + 1) // 2
        prompt = StepWork(prefill_tokens=length, prefill_sequences=1, prefill_pairs=pairs)
        decode = StepWork(decode_sequences=2, decode_context=2 * length)
        for work in (prompt, decode):
            assert model.is_extrapolated(work) is (length > 1500)


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_scenes_copy_and_swap_at_any_size_of_a_block(block_size: int) -> None:
    settings = roomy().model_copy(update={"block_size": block_size, "num_blocks": 16_000})
    copies = measured(settings, lambda engine: list(fork_scenes(engine)))
    counts = {step.work.copied_blocks for scene in copies.scenes for step in scene}
    assert counts >= {1, 7, 60} if block_size > 1 else not copies.scenes
    swaps = measured(swap_settings(settings, REGISTRY, 1500), choose_swap_scenes)
    assert len({step.work.swapped_blocks for scene in swaps.scenes for step in scene}) > 5


def test_an_engine_that_is_too_small_is_refused() -> None:
    engine = build_engine(simulated(num_blocks=10), REGISTRY)
    with pytest.raises(SettingsError, match=r"40 cached tokens .* too small to be calibrated"):
        choose_scenes(engine, 200)


def test_errors_are_given_by_kind_of_step() -> None:
    model = LinearCost(
        LinearSettings(**{**MODEL, "fixed": 1.0}), CostModelContext(settings=roomy())
    )
    work = {
        "decode, up to 4 sequences": StepWork(decode_sequences=4),
        "decode, more than 4 sequences": StepWork(decode_sequences=5),
        "prefill, up to 128 tokens": StepWork(prefill_tokens=128),
        "prefill, more than 128 tokens": StepWork(prefill_tokens=129),
        "prefill and decode": StepWork(prefill_tokens=8, decode_sequences=1),
        "with copied blocks": StepWork(decode_sequences=1, copied_blocks=1),
        "with swapped blocks": StepWork(prefill_tokens=8, copied_blocks=1, swapped_blocks=2),
    }
    assert {kind: kind_of(each) for kind, each in work.items()} == {kind: kind for kind in work}
    steps = [MeasuredStep(each, model.seconds(each) / 2) for each in work.values()]
    assert {each["bias"] for each in relative_errors(model, steps).values()} == {1.0}
