"""The search: its rounds, what it finds, and which axes it says mattered."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_core.plugins.registry import Registry
from paged_core.settings.layers import Origin
from paged_core.settings.schema import settings_class
from paged_core.settings.sources import from_yaml
from paged_plugins.lab.search.report import document, print_search, settings_yaml, verdict
from paged_plugins.lab.search.search import (
    MIN_REQUESTS,
    Search,
    SearchResult,
    Trials,
    failed_values,
    main_effects,
    planned_rungs,
    read_search,
    run_search,
)
from paged_plugins.lab.study.arms import layer
from paged_plugins.lab.tasks.pool import open_runner

REGISTRY = Registry.discover()
WORKLOAD = {
    "name": "busy",
    "lengths": {"prompt": 40, "output": 12},
    "arrivals": {"poisson": {"rate": 200}},
    "requests": 40,
}
SEARCH = {
    "base": {"scheduler": {"name": "token_budget", "max_num_seqs": 1}, "num_blocks": 64},
    "axes": {
        "scheduler.max_num_seqs": [1, 2, 16],
        "victim": ["newest", "fewest_computed"],
        "evictor": ["lru", "slru"],
    },
    "workloads": [WORKLOAD],
    "minimize": "e2e_ms_mean",
    "seeds": 3,
    "finalists": 2,
    "confirm": 6,
}


def search(**changes: Any) -> SearchResult:
    made = Search.model_validate(SEARCH | changes)
    with open_runner(REGISTRY, workers=1) as runner:
        return run_search(made, made.arms(REGISTRY), runner)


@given(
    *(st.integers(1, 500), st.integers(1, 9), st.integers(2, 5)),
    *(st.integers(1, 20), st.integers(1, 2000)),
)
def test_each_round_has_fewer_arms_and_more_work(
    num_arms: int, finalists: int, reduction: int, num_seeds: int, num_requests: int
) -> None:
    asked = {"finalists": finalists, "reduction": reduction, "seeds": num_seeds}
    workloads = [WORKLOAD | {"requests": num_requests}]
    made = planned_rungs(Search.model_validate(SEARCH | asked | {"workloads": workloads}), num_arms)
    assert made[0].num_arms == num_arms
    assert (made[-1].num_seeds, made[-1].share) == (num_seeds, 1)
    assert made[-1].num_arms >= min(finalists, num_arms)
    for before, after in pairwise(made):
        assert after.num_arms < before.num_arms
        assert (after.num_seeds, after.share) >= (before.num_seeds, before.share)
    if len(made) > 1:
        assert made[0].num_seeds * made[0].share * num_requests >= MIN_REQUESTS * 0.5
    for rung in made:
        assert rung.share == 1 or rung.num_seeds == 1


def test_main_effects_add_up_where_axes_do_not_interact() -> None:
    levels = {f"{a}{b}": {"a": a, "b": b, "c": "same"} for a in range(3) for b in range(2)}
    found = {arm: 10.0 * one["a"] + one["b"] for arm, one in levels.items()}  # type: ignore[operator]
    effects = main_effects(found, levels)
    assert [one.axis for one in effects] == ["a", "b", "c"]
    assert sum(one.share for one in effects) == pytest.approx(1)
    assert effects[0].share == pytest.approx(800 / 803)
    assert effects[0].means == {"0": 0.5, "1": 10.5, "2": 20.5}
    assert effects[2].share == 0


def test_an_interaction_belongs_to_no_axis() -> None:
    levels = {f"{a}{b}": {"a": a, "b": b} for a in range(2) for b in range(2)}
    found = {arm: float(one["a"] == one["b"]) for arm, one in levels.items()}
    assert [one.share for one in main_effects(found, levels)] == [0, 0]
    assert main_effects({}, levels) == []
    assert [one.share for one in main_effects(dict.fromkeys(found, 1.0), levels)] == [0, 0]


def test_a_planted_winner_is_found_and_confirmed() -> None:
    found = search()
    assert found.winner.arm.changes == {"scheduler.max_num_seqs": 16}
    assert found.is_better
    assert found.effects[0].axis == "scheduler.max_num_seqs"
    assert found.effects[0].share > 0.95
    assert "scheduler.max_num_seqs=16 is better than the base: -" in verdict(found)
    assert len(found.rounds) > 1
    assert len(found.rounds[0].scores) == 12
    assert set(found.results.seeds).isdisjoint(range(3))
    assert document(found)["winner"] == "scheduler.max_num_seqs=16"


def test_where_nothing_matters_the_base_stays() -> None:
    found = search(axes={"victim": ["newest", "fewest_computed"], "block_size": [16]}, seeds=1)
    assert found.winner.arm.label == "base"
    assert not found.is_better
    assert verdict(found) == "With fresh seeds, nothing that was found is better than the base."
    assert [one.share for one in found.effects] == [0, 0]


def test_no_axis_matters_where_all_combinations_are_equal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    workload = {"name": "calm", "lengths": {"prompt": 8, "output": 2}, "requests": 3}
    print_search(search(workloads=[workload], axes={"victim": ["newest", "fewest_computed"]}))
    out = capsys.readouterr().out
    assert "No axis mattered: all combinations have the same completion mean.\n\nFinalists" in out
    assert "share" not in out


def test_of_arms_that_cannot_be_told_apart_the_simplest_wins() -> None:
    found = search(axes={"scheduler.max_num_seqs": [1, 16], "watermark": [0, 0.01]}, seeds=1)
    assert len(found.finalists) == 3
    assert found.winner.arm.changes == {"scheduler.max_num_seqs": 16}


def test_an_arm_that_fails_is_left_out() -> None:
    unknown = {"name": "roofline", "model": "/nowhere"}
    found = search(axes={"cost_model": ["linear", unknown], "scheduler.max_num_seqs": [1, 16]})
    assert len(found.problems) == 2
    assert all("/nowhere" in label for label in found.problems)
    assert found.winner.arm.changes["scheduler.max_num_seqs"] == 16
    assert list(found.not_judged) == ["cost_model"]
    assert [one.axis for one in found.effects] == ["scheduler.max_num_seqs"]


def test_an_axis_is_judged_where_its_values_were_served_alike() -> None:
    levels = {f"{a}{b}": {"a": a, "b": b, "c": "same"} for a in range(3) for b in range(2)}
    assert failed_values(set(), levels) == failed_values(set(levels), levels) == {}
    assert failed_values({"10", "11"}, levels) == {"a": ["1"]}
    assert failed_values({"11"}, levels) == {"a": ["1"], "b": ["1"]}
    assert failed_values({"11"}, {}) == {}


def test_workloads_are_weighed_by_the_base() -> None:
    calm = WORKLOAD | {"name": "calm", "arrivals": {"poisson": {"rate": 1}}, "requests": 5}
    axes = {"scheduler.max_num_seqs": [1, 16]}
    found = search(workloads=[WORKLOAD, calm], axes=axes, seeds=1, finalists=1)
    assert found.scores["base"] == pytest.approx(-1)
    assert {run.workload for run in found.results.runs} == {"busy", "calm"}


def test_what_was_run_once_is_not_run_again() -> None:
    made = Search.model_validate(SEARCH)
    arms = made.arms(REGISTRY)[:1]
    given: list[int] = []
    with open_runner(REGISTRY, workers=1) as runner:

        def counted(tasks: Any) -> Any:
            given.append(len(tasks))
            return runner(tasks)

        trials = Trials(made, counted)
        first = trials.run(arms, [0])
        assert trials.run(arms, [0, 1]).runs[:1] == first.runs
        trials.run(arms, [0], 0.5)
    assert given == [1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"minimize": None}, "give `maximize` or `minimize`"),
        ({"maximize": "goodput_per_s"}, "give `maximize` or `minimize`"),
        ({"minimize": None, "maximize": "goodput_per_s"}, "goodput_per_s needs limits; give `slo`"),
        ({"minimize": "ttft_p99"}, "no measure is called 'ttft_p99'; did you mean 'ttft_ms_p99'?"),
        ({"executor": "local"}, "a search is made in simulation"),
        ({"axes": {"num_blocks": list(range(1, 10_002))}}, "10,001 combinations"),
        ({"axes": {"victim": ["nwest"]}}, "did you mean 'newest'?"),
        ({"seeds": 0}, "seeds: Input should be greater than or equal to 1"),
        ({"reduction": 1}, "reduction: "),
        ({"confirm": 2}, "confirm: "),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(SEARCH | changes), "utf-8")
    with pytest.raises(SettingsError) as error:
        read_search(path, REGISTRY)
    assert problem in str(error.value)
    assert str(error.value).startswith(str(path))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scheduler.max_num_seqs": 16},
        {"scheduler": "prefill_or_decode"},
        {"scheduler": "token_budget"},
        {"scheduler": {"name": "prefill_or_decode", "max_num_seqs": 4}},
        {"scheduler": {"max_num_batched_tokens": 64}},
        {"evictor": {"name": "lru"}, "num_blocks": 7, "model": "demo"},
    ],
)
def test_the_settings_of_an_arm_can_be_copied(changes: dict[str, Any]) -> None:
    made = settings_class(REGISTRY)
    base: dict[str, Any] = SEARCH["base"]  # type: ignore[assignment]
    of_arm, _ = made.from_layers([layer(base), layer(changes)])
    of_text, _ = made.from_layers([from_yaml(settings_yaml(base, changes), Origin("yaml", ""))])
    assert of_text == of_arm


def test_the_command_prints_and_writes_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "search.yaml", tmp_path / "found.json"
    axes = {"scheduler.max_num_seqs": [1, 16]}
    path.write_text(yaml.safe_dump(SEARCH | {"axes": axes, "seeds": 1}), "utf-8")
    command = ["lab", "search", str(path), "--workers", "1"]
    assert main([*command, "--output", str(output)], {}) == 0
    told = capsys.readouterr()
    assert "scheduler.max_num_seqs  100%" in told.out
    assert "  max_num_seqs: 16\n" in told.out
    assert "up to " in told.err
    assert main([*command, "--json"], {}) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(output.read_text("utf-8"))
