"""Replays in which another component takes one decision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import BAD_USAGE, OK, main
from paged_core.plugins.registry import Registry
from paged_plugins.decisions.counterfactual import counterfactual
from paged_plugins.decisions.replay import settings_of
from paged_plugins.decisions.scenario import Scenario

REGISTRY = Registry.discover()
THREE: dict[str, Any] = {
    "name": "three",
    "settings": {"num_blocks": 12, "block_size": 4},
    "requests": [
        {"id": "A", "prompt": 9, "output": 12},
        {"id": "B", "prompt": 7, "output": 12},
        {"id": "C", "prompt": 20, "output": 6},
    ],
}
"""In step 4 one of B and C is preempted."""


def test_a_decision_has_its_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "three.json"
    path.write_text(json.dumps(THREE))
    given = ["replay", str(path), "--at", "4", "--instead", "victim=fewest_computed"]
    assert main([*given, "--json"], {}) == OK
    found = json.loads(capsys.readouterr().out)
    assert [each["preempted"] for each in found["decided"]] == [["C"], ["B"]]
    assert found["measures"]["tokens computed"] == [78, 69]
    assert found["requests"] == {"B": [12.0, 14.0], "C": [14.0, 6.0]}
    assert main(given, {}) == OK
    printed = capsys.readouterr().out
    assert "three: step 4, decided by victim=fewest_computed instead" in printed
    assert "C 14 6 -8" in " ".join(printed.split())


FOUR: dict[str, Any] = {
    "name": "four",
    "settings": {
        **{"num_blocks": 6, "block_size": 4},
        "scheduler": {"name": "token_budget", "max_num_seqs": 1},
    },
    "requests": [
        {"id": "A", "prompt": "1:9", "output": 2},
        {"id": "B", "prompt": "21:29", "output": 2},
        {"id": "C", "prompt": "41:53", "output": 2},
        {"id": "D", "prompt": "21:33", "output": 2},
    ],
}
"""One after the other; D begins as B did."""


@pytest.mark.parametrize(
    ("instead", "key", "decided", "tokens"),
    [
        ("queue_order=longest_prefix", "scheduled", [{"C": 12}, {"D": 4}], [36, 36]),
        ("evictor=mru", "evicted", [[1], [3]], [36, 40]),
    ],
)
def test_only_one_step_is_decided_otherwise(
    instead: str, key: str, decided: Any, tokens: list[int]
) -> None:
    scenario = Scenario.model_validate(FOUR)
    found = counterfactual(scenario, REGISTRY, settings_of(scenario, REGISTRY), 4, instead)
    assert [each[key] for each in found["decided"]] == decided
    assert found["measures"]["tokens computed"] == tokens


@pytest.mark.parametrize("slot", ["victim", "preemption", "queue_order", "evictor"])
def test_the_same_component_decides_the_same(slot: str) -> None:
    """In every step in which it decides at all, whose names the error gives."""
    scenario = Scenario.model_validate(THREE)
    settings = settings_of(scenario, REGISTRY)
    steps = {"victim": [4], "preemption": [4], "queue_order": [0, 4, 12], "evictor": [6, 8, 10, 12]}
    same = f"{slot}={dict(settings)[slot].name}"
    for step in steps[slot]:
        found = counterfactual(scenario, REGISTRY, settings, step, same)
        assert found["decided"][0] == found["decided"][1]
        assert all(one == two for one, two in found["measures"].values())
        assert not found["requests"]


@pytest.mark.parametrize(
    ("at", "instead", "told"),
    [
        ("5", "victim=most_blocks", "victim decides nothing in this step; it does in 4"),
        ("4", "scheduler=token_budget", "with one of victim, preemption, queue_order, evictor"),
        ("4", "victim=nobody", "no victim is called"),
        ("4", "victim={name: newest, sort: 1}", "victim.sort: newest has no such option"),
        ("0", "queue_order=fair", "it decides by what it was told before"),
        ("6", "evictor=belady", "belady rehearses"),
        ("4", "preemption=swap", "no blocks on the host"),
        ("4", None, "--at and --instead are given together"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    at: str, instead: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "three.json"
    path.write_text(json.dumps(THREE))
    more = [] if instead is None else ["--instead", instead]
    assert main(["replay", str(path), "--at", at, *more], {}) == BAD_USAGE
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("more", [["--at", "4", "--instead", "victim=most_blocks"], ["two.json"]])
def test_observers_write_the_files_of_one_replay_alone(
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one.json", "two.json"):
        Path(name).write_text(json.dumps(THREE))
    command = ["replay", "one.json", "--observers", '["decision_log"]']
    assert main([*command, *more], {}) == BAD_USAGE
    assert "leave observers out: all replays" in capsys.readouterr().err
    assert main(command, {}) == 0
    assert sorted(each.name for each in tmp_path.glob("*jsonl*")) == ["decisions.jsonl"]
