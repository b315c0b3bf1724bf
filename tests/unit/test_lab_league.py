"""The league: its rows, its winners, its page, and that runs are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from paged_core.cli import main
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_plugins.lab.league.league import League
from paged_plugins.lab.league.page import Table, page, tables
from paged_plugins.lab.results.kept_runs import KeptRuns
from paged_plugins.lab.tasks.task import Ran, Task, run
from paged_policies.victims.newest import NewestVictim

WORKLOAD = {
    "name": "small",
    "requests": 24,
    "arrivals": {"poisson": {"rate": 50}},
    "lengths": {"prompt": {"uniform": [20, 60]}, "output": {"uniform": [10, 60]}},
}
SECOND = {"fixed": 1.0}
LEAGUE: dict[str, Any] = {
    "base": {"num_blocks": 24, "block_allocator": "uncached"},
    "gpus": {"H1": {"measured": {}, "roofline": {}}, "A1": {"measured": {}, "roofline": {}}},
    "divisions": {
        "victim": {
            "title": "Victims",
            "base": {"scheduler": {"name": "token_budget", "reserve_full_sequence": False}},
            "variants": {"limited": {"victim": {"name": "most_blocks", "max_preemptions": 1}}},
            "measures": ["e2e_ms_mean", "preemptions"],
            "workloads": [WORKLOAD],
        },
        "queue_order": {
            "title": "Orders",
            "paired": {"length_predictor": {"queue_order": "sjf"}},
            "measures": ["e2e_ms_mean"],
            "workloads": [WORKLOAD],
            "knows_future": ["sjf + oracle"],
        },
    },
}
FACTS = {"command": "paged-core lab league", "date": "today", "version": "1", "model": "roofline"}


class OldestSettings(ComponentSettings):
    name: Literal["oldest"] = "oldest"


class OldestVictim(NewestVictim):
    def choose(self, candidates: Any, now: float, /) -> Any:
        return candidates[0]


class NeedySettings(ComponentSettings):
    name: Literal["needy"] = "needy"
    needed: int


class BrokenSettings(ComponentSettings):
    name: Literal["broken"] = "broken"


class BrokenVictim(NewestVictim):
    def choose(self, candidates: Any, now: float, /) -> Any:
        raise RuntimeError("no idea")


@pytest.fixture(scope="module")
def registry() -> Registry:
    parts = [
        Component("victim", settings, f"{__name__}:{factory}")
        for settings, factory in (
            (OldestSettings, "OldestVictim"),
            (NeedySettings, "OldestVictim"),
            (BrokenSettings, "BrokenVictim"),
        )
    ]
    return Registry.discover().extended(*parts)


@pytest.fixture
def league(monkeypatch: pytest.MonkeyPatch) -> League:
    monkeypatch.setattr("paged_plugins.lab.league.league.cost_model", lambda registry: "roofline")
    return League.model_validate(LEAGUE)


class Runs:
    """Runs tasks in this process, and counts them."""

    def __init__(self, registry: Registry) -> None:
        self.registry, self.count = registry, 0

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        for task in tasks:
            self.count += 1
            yield run(task, self.registry)


def played(league: League, runner: Any, registry: Registry) -> list[Any]:
    matches = [each.fitted(runner) for each in league.matches(registry)]
    return [(each, each.compared(runner)) for each in matches]


def test_installed_components_are_rows(league: League, registry: Registry, tmp_path: Path) -> None:
    own = league.only(["victim"]).quick()
    found = played(own, Runs(registry), registry)
    table: Table = tables(found)[0]
    told = {each.label: each for each in table.entrants}
    assert table.entrants[0].label == "newest"
    assert {"most_blocks", "recompute_cost", "oldest", "needy", "broken", "limited"} <= told.keys()
    assert told["oldest"].package == "this program"
    assert "needed" in str(told["needy"].reason)
    column = ("small", "H1")
    assert "no idea" in str(table.places["broken"][column].failure)
    asked = table.places["oldest"][column].asked
    assert re.fullmatch(r"[\d.]+ of [\d.]+ preemptions, 100% otherwise", asked)
    assert table.places["lowest_priority"][column].asked.endswith(", 0% otherwise")
    text = page(found, FACTS)
    assert "cannot run here: " in text
    assert "failed: " in text
    assert text.count("★") == 2, "one column, and how to read it"


def test_the_best_that_is_better_wins_and_no_oracle_does(
    league: League, registry: Registry
) -> None:
    (table,) = tables(played(league.only(["queue_order"]).quick(), Runs(registry), registry))
    column = ("small", "H1")
    bounds = list(table.bounds(column))
    assert [each.entrant.label for each in bounds] == ["sjf + oracle"]
    assert "sjf + none" not in table.places, "these are the settings of sjf"
    winner = table.winner(column)
    assert winner.entrant.label not in {"sjf + oracle", "needy"}
    better = {
        label: place[column].found["e2e_ms_mean"].change
        for label, place in table.places.items()
        if label != "fcfs" and place[column].found["e2e_ms_mean"].verdict == "better"
        if not place[column].entrant.knows_future
    }
    assert winner.entrant.label == (min(better, key=better.__getitem__) if better else "fcfs")


def test_what_never_had_a_choice_is_said_to(league: League, registry: Registry) -> None:
    roomy = LEAGUE | {"base": {"num_blocks": 4096}}
    own = League.model_validate(roomy).only(["victim"]).quick()
    (table,) = tables(played(own, Runs(registry), registry))
    place = table.places["oldest"]["small", "H1"]
    assert "was never asked" in str(place.never)
    assert table.winner(("small", "H1")).entrant.is_default


def test_each_run_is_run_once(league: League, registry: Registry, tmp_path: Path) -> None:
    own, inner = league.only(["queue_order"]).quick(), Runs(Registry.discover())
    first = page(played(own, KeptRuns(tmp_path, registry, inner), registry), FACTS)
    count, inner.count = inner.count, 0
    again = page(played(own, KeptRuns(tmp_path, registry, inner), registry), FACTS)
    assert count > 0
    assert inner.count == 0
    assert again == first


def test_the_command_writes_a_page_that_needs_nothing_else(
    league: League,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(League, "shipped", classmethod(lambda cls: league))
    monkeypatch.setattr("paged_plugins.lab.commands.league.cost_model", lambda registry: "roofline")
    out = tmp_path / "page.html"
    where = ["--out", str(out), "--results", str(tmp_path / "kept"), "--workers", "1"]
    assert main(["lab", "league", "--quick", "--slots", "victim", *where], {}) == 0
    assert "times of steps: roofline; pip install" in capsys.readouterr().err
    text = out.read_text("utf-8")
    assert not re.search(r"(src|href)=.?https?:|@import|url\(", text)
    assert "roofline of these GPUs, not measured" in text
    assert text.count("<tr>") == text.count("</tr>") or "</tr>" not in text
    for table in re.findall(r"<table class=\"sort\">(.*?)</table>", text, re.DOTALL):
        heads = len(re.findall(r"<th", table.partition("</thead>")[0])) - 1  # and <thead
        for row in table.split("<tr>")[2:]:
            spans = sum(int(each) - 1 for each in re.findall(r'colspan="(\d+)"', row))
            assert len(re.findall(r"<td", row)) + spans == heads


def test_an_unknown_division_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "league", "--slots", "evictr"], {}) != 0
    assert "did you mean 'evictor'" in capsys.readouterr().err


def test_the_curated_league_is_valid() -> None:
    league, registry = League.shipped(), Registry.discover()
    matches = league.matches(registry)
    assert {match.gpu for match in matches} == {"H100", "A100"}
    for match in matches:
        assert len(match.study.arms) > 3
        assert not [each.label for each in match.entrants if each.reason]
