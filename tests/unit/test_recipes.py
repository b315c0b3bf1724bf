"""The recipes under examples/recipes improve their metric, and the documentation shows them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from architecture.snippets import ROOT, blocks
from paged_testing import VictimConformance, registry_with

pytestmark = pytest.mark.heavy


FOLDER = ROOT / "examples" / "recipes"
PAGE = ROOT / "docs" / "recipes.md"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(scope="module")
def compare() -> Iterator[Any]:
    """The script, as a module."""
    path = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield import_module("compare")
    sys.path[:] = path


def test_every_scenario_is_compared(compare: Any) -> None:
    assert {path.stem for path in FILES} == set(compare.RECIPES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_metric_is_lower_with_the_recipe(path: Path, compare: Any) -> None:
    without, with_it = compare.measure(path.stem)
    assert with_it < without


def urgent(compare: Any, **changes: Any) -> Any:
    """The trace of the recipe, and the scenario; with other options of the scheduler."""
    scenario = compare.read_case(FOLDER / "preempt_for_urgent.yaml").scenario
    scheduler = {**scenario.settings["scheduler"], **changes}
    values = {**scenario.settings, "preemption": "swap", "scheduler": scheduler}
    scenario = scenario.model_copy(update={"settings": values})
    return list(compare.replay(scenario, compare.registry())), scenario


def test_an_urgent_request_swaps_out_a_running_one(compare: Any) -> None:
    trace, _ = urgent(compare, swap_in_by_order=True)
    assert trace[3]["swapped_out"] == ["bulk2"]
    assert (trace[3]["scheduled"], trace[3]["swapped_in"]) == ({"bulk1": 1}, [])
    assert trace[4]["scheduled"] == {"urgent": 10}
    assert all(line["swapped_in"] == [] for line in trace[:9])
    assert trace[8]["finished"] == ["urgent"]
    assert (trace[9]["swapped_in"], trace[9]["scheduled"]) == (["bulk2"], {"bulk1": 1, "bulk2": 1})
    prompts = 30 + 30 + 10
    total = sum(sum(line["scheduled"].values()) for line in trace)
    assert total == prompts + 29 + 29 + 4  # nothing is computed twice


def test_without_swap_in_by_order_the_swapped_out_request_is_swapped_in_at_once(
    compare: Any,
) -> None:
    trace, scenario = urgent(compare)
    assert trace[3]["swapped_out"] == trace[3]["swapped_in"] == ["bulk2"]
    assert compare.last_step_of("urgent")(trace, scenario) > 30


class TestCheapest(VictimConformance):
    """The victim of ``parts.py`` passes the conformance kit."""

    component = "cheapest"

    @pytest.fixture(autouse=True)
    def _importable(self, compare: Any) -> None:
        type(self).part = compare.CHEAPEST

    part: Any

    def make_registry(self) -> Any:
        return registry_with(self.part)


def test_the_script_prints_what_changes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "compare.py", "fair_among_tenants"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PAGED_CORE_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "queue_order: fair instead of fcfs" in done.stdout
    assert re.search(r"\d+ -> \d+", done.stdout)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_page_shows_the_settings_of_the_file(path: Path) -> None:
    text = PAGE.read_text("utf-8")
    assert f"`{path.name}`" in text
    settings = yaml.safe_load(path.read_text("utf-8"))["settings"]
    shown = [yaml.safe_load(block.body) for block in blocks(PAGE) if block.language == "yaml"]
    assert any(table.items() <= settings.items() for table in shown)


@pytest.mark.long
def test_a_search_ends_with_a_comparison_on_fresh_seeds() -> None:
    pytest.importorskip("optuna", reason="the recipe that needs it says so")
    path = FOLDER / "search.py"
    (shown,) = (block for block in blocks(PAGE) if block.file == path.name)
    assert shown.body.strip() == path.read_text("utf-8").strip()
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert "arm    compared with" in done.stdout or "equal in all arms" in done.stdout
