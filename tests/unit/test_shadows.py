"""Shadows beside the components of a run, what they count, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from paged_core.cli import OK, main
from paged_core.plugins.component import ComponentSettings
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.cluster.simulate_cluster import simulate_cluster
from paged_plugins.lab.runs.run_record import DecisionCount, RunRecord
from paged_plugins.lab.runs.run_workload import run_workload
from paged_plugins.lab.runs.shadows import WATCHED
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.spec import parse_spec
from paged_plugins.workloads.workload import ListedWorkload
from paged_testing.engines import registry_with
from properties.profile import Length, lengths
from unit.lab_runs import REGISTRY, asks, simulated
from unit.planted_policies import PLANTED
from unit.studies import run as run_study_file
from unit.studies import write

CROWDED = parse_spec(
    {
        "requests": 14,
        "lengths": {"prompt": {"uniform": [4, 16]}, "output": {"uniform": [2, 12]}},
        "prefixes": {"system": 8, "conversation": {"turns": 3, "think": 1}},
        "arrivals": {"poisson": {"rate": 1}},
        "tenants": ["a", "b"],
    },
    "crowded",
).build()


def options(settings: EngineSettings, *slots: str) -> dict[str, ComponentSettings]:
    return {slot: dict(settings)[slot] for slot in slots}


def served(
    chosen: Mapping[str, Any], baseline: Mapping[str, Any] | None, replicas: int = 1
) -> RunRecord:
    settings = simulated(num_blocks=12, block_size=4, **chosen)
    shadow = None
    if baseline is not None:
        shadow = options(simulated(num_blocks=12, block_size=4, **baseline), *baseline)
    if "router" in chosen:
        return simulate_cluster(
            settings, REGISTRY, CROWDED, 0, num_replicas=replicas, baseline=shadow
        )
    return run_workload(settings, REGISTRY, CROWDED, 0, baseline=shadow)


@lengths(6, 300)
def test_a_run_with_shadows_is_the_run_without(length: Length) -> None:
    """Any component beside any other, in all slots at once."""
    drawn = st.fixed_dictionaries(
        {
            slot: st.sampled_from(sorted(set(REGISTRY.of(slot)) - {"belady"}))
            for slot in WATCHED
            if slot != "router"
        }
    )
    routers = st.sampled_from([None, *sorted(REGISTRY.of("router"))])

    def check(
        chosen: dict[str, str], base: dict[str, str], router: str | None, other: str | None
    ) -> None:
        if router and other:
            chosen, base = {**chosen, "router": router}, {**base, "router": other}
        plain, watched = served(chosen, None, 3), served(chosen, base, 3)
        assert {*watched.asked} == {*base}
        watched.asked = {}
        assert watched == plain

    length.check(check, drawn, drawn, routers, routers)


RETURNING = [asks(name, length, 2) for name, length in (("a", 4), ("b", 4), ("c", 8), ("d", 8))]
BURST = [asks(name, length, 2) for name, length in (("a", 12), ("b", 8), ("c", 4))]

BUCKET = {"name": "token_bucket", "burst": 1}
LATE = [asks("a", 12, 2), asks("b", 8, 2, at=50), asks("c", 4, 2, at=60, deadline=1e-9)]


@pytest.mark.parametrize(
    ("slot", "name", "base", "requests", "expected"),
    [
        # the shortest of three, then of two, while the first to come would have been admitted
        ("queue_order", "sjf", "fcfs", BURST, DecisionCount(3, 2, 2, 2)),
        ("queue_order", "fcfs", "priority", BURST, DecisionCount(3, 2, 2, 0)),
        ("queue_order", "fcfs", "fcfs", BURST, DecisionCount(3, 2, 0, 0)),
        # c and d take blocks of those before them, whose last uses differ
        ("evictor", "mru", "lru", RETURNING, DecisionCount(3, 3, 3, 3)),
        ("evictor", "lru", "lru_twin", RETURNING, DecisionCount(3, 3, 3, 0)),
        ("scheduler", "token_budget", "static_batch", BURST, DecisionCount(6, 4, 0, 0)),
        # the second and the third are above the rate of a token a second
        ("admission", BUCKET, "always", BURST, DecisionCount(3, 2, 2, 2, {"refused": 2})),
        (
            "admission",
            BUCKET | {"over": "hold"},
            "always",
            BURST,
            DecisionCount(3, 2, 2, 2, {"s held": 3}),
        ),
        ("admission", "bounded", "always", BURST, DecisionCount(3, 0, 0, 0)),
        # what a shadow learns of the steps of others: the last has no time left
        ("admission", "always", "deadline", LATE, DecisionCount(3, 1, 1, 1, {"refused": -1})),
    ],
)
def test_decisions_are_counted(
    slot: str, name: Any, base: str, requests: list[WorkloadRequest], expected: DecisionCount
) -> None:
    registry = registry_with(*PLANTED)
    limits = {"name": "token_budget", "max_num_seqs": 1}
    small: dict[str, Any] = {"scheduler": limits, "num_blocks": 4 if slot == "evictor" else 64}
    chosen = {slot: limits if slot == "scheduler" else name}
    settings = simulated(**{**small, **chosen})
    based = {slot: registry.get(slot, base).settings.model_validate({})}
    listed = ListedWorkload("listed", requests)
    assert run_workload(settings, registry, listed, 0, baseline=based).asked == {slot: expected}


def test_a_shadow_that_raises_is_asked_no_more() -> None:
    record = served({"queue_order": "sjf"}, None)
    settings = simulated(num_blocks=12, block_size=4, queue_order="sjf")
    broken = {"queue_order": ComponentSettings(name="missing")}
    watched = run_workload(settings, REGISTRY, CROWDED, 0, baseline=broken)
    assert watched.requests == record.requests
    assert watched.asked["queue_order"].compared == 0 < watched.asked["queue_order"].choices


# ---------------------------------------------------------------------- "my policy changes nothing"

QUIET = """
name: quiet
requests: 30
lengths: {prompt: {uniform: [20, 60]}, output: {uniform: [20, 40]}}
arrivals: {interval: 2}
deadline: 5
"""


def compared(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main(["compare", str(path), *more, "--seeds", "1", "--workers", "1", "--json"], {}) == OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("vary", "slot", "cause", "option"),
    [
        ("evictor=lru,mru", "evictor", "nothing was evicted", "--working-set"),
        ("queue_order=fcfs,sjf", "queue_order", "the queue never held two requests", "--load"),
        ("victim=newest,fewest_computed", "victim", "no two requests", "--cache"),
        ("admission=always,deadline", "admission", "no request would have been refused", "--load"),
    ],
)
def test_a_policy_that_was_never_asked_is_named_with_what_would_ask_it(
    vary: str,
    slot: str,
    cause: str,
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The fraction that is named is given in turn, and then the policy has a choice."""
    path = tmp_path / "quiet.yaml"
    path.write_text(QUIET)
    found = compared(path, capsys, "--vary", vary, "--num-blocks", "4096")
    assert all(each["change"] == 0 for each in found["differences"])
    base, arm = found["asked"]
    assert (base["never"], arm["slot"], arm["choices"]) == (None, slot, 0)
    assert cause in arm["never"]
    words = arm["never"].split()
    named = words[words.index("with") + 1 : words.index("it", words.index("with"))]
    assert option in named
    again = compared(path, capsys, "--vary", vary, *named)
    assert [each["never"] for each in again["asked"]] == [None, None]
    assert again["asked"][1]["choices"] > 0


@pytest.mark.heavy
def test_it_is_said_before_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quiet.yaml"
    path.write_text(QUIET)
    vary = ("--vary", "evictor=lru,slru", "--vary", "block_size=8,16")
    assert main(["compare", str(path), *vary, "--workers", "1"], {}) == OK
    lines = capsys.readouterr().out.splitlines()
    said = "quiet: evictor=slru was never asked: nothing was evicted"
    assert [line.startswith(said) for line in lines[:3]] == [False, True, False]


@pytest.mark.heavy
def test_counts_of_a_study_are_kept_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, kept = write(tmp_path, seeds=1, axes={"victim": ["newest", "fewest_computed"]}), "kept"
    assert run_study_file(study, tmp_path / kept, "--shadow") == OK
    capsys.readouterr()
    assert main(["lab", "report", str(tmp_path / kept)], {}) == OK
    never = "small: victim=fewest_computed was never asked: no two requests could have been"
    assert never in capsys.readouterr().out
    assert never in (tmp_path / kept / "report.md").read_text()


@pytest.mark.parametrize(
    ("vary", "says"),
    [
        ("length_predictor=none,history", "length_predictor=history was never asked: no other"),
        ("num_host_blocks=1,100", "num_host_blocks=100 changed nothing in these runs: every"),
        ("checks=basic,full", "checks=full changed nothing in these runs: every measure is that"),
    ],
)
def test_settings_without_effect_are_said_to_have_none(
    vary: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["compare", "alpaca", "--vary", vary, "--seeds", "2", "--workers", "1"]
    assert main(given, {}) == 0
    assert says in capsys.readouterr().out


def test_predictions_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["compare", "alpaca", "--vary", "length_predictor=none,history", "--seeds", "1"]
    few = ["--queue-order", "sjf", "--scheduler.max-num-seqs", "4", "--json"]
    assert main([*given, *few], {}) == 0
    document = json.loads(capsys.readouterr().out)
    counts = {each["arm"]: each for each in document["asked"]}
    assert counts["length_predictor=history"]["choices"] > 0
    assert document["idle"] == []
