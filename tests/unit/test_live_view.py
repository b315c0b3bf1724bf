"""Observer ``live_view``: a reader that applies its differences has the engine's own state."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.unit.engines import REGISTRY, finish, request

from paged_core.engine.engine import Engine
from paged_plugins.metrics import live_view
from paged_plugins.metrics.live_view import LiveView
from paged_testing.engines import build_memory_engine, serve
from paged_testing.workloads import SITUATIONS, Situation


def watched(options: dict[str, Any] | None = None, **settings: Any) -> tuple[Engine, LiveView]:
    observer = {"name": "live_view", **(options or {})}
    engine = build_memory_engine(REGISTRY, observers=[observer], **settings)
    (view,) = (each for each in engine.observers if isinstance(each, LiveView))
    return engine, view


class Reader:
    """Applies reports, as a page does."""

    def __init__(self, view: LiveView) -> None:
        self.view, self.cursor = view, 0
        self.cells: dict[int, list[Any]] = {}
        self.requests: dict[int, list[Any]] = {}
        self.steps: list[list[float]] = []
        self.totals: dict[str, int] = {}
        self.num_whole = 0

    def read(self) -> dict[str, Any]:
        report = json.loads(json.dumps(self.view.report(self.cursor)))
        if report["whole"]:
            self.num_whole += 1
            self.cells, self.requests, self.steps = {}, {}, []
        for number in report["ended"]:
            self.requests.pop(number, None)
        self.requests |= {row[0]: row for row in report["requests"]}
        self.cells |= {cell[0]: cell[1:] for cell in report["cells"]}
        self.cells = {block: cell for block, cell in self.cells.items() if any(cell[1:])}
        self.steps += report["steps"]
        self.totals, self.cursor = report["totals"], report["cursor"]
        return report

    def owned(self) -> set[int]:
        return {block for block, cell in self.cells.items() if cell[0] >= 0}


class TestBlocks:
    def test_appear_are_shared_stay_cached_and_go(self) -> None:
        engine, view = watched(num_blocks=8)
        reader = Reader(view)
        reader.read()
        engine.add(request("A", range(100, 109), max_tokens=3))
        engine.step()
        reader.read()
        first = engine.kv_cache
        (a,) = engine.groups
        held = a.live[0].table.blocks
        assert {block: cell[:2] for block, cell in reader.cells.items()} == {
            block: [a.number, place] for place, block in enumerate(held)
        }
        engine.add(request("B", range(100, 109), max_tokens=3))
        engine.step()
        reader.read()
        shared = [block for block, cell in reader.cells.items() if cell[2] == 2]
        assert shared == held[:2]
        assert [reader.cells[block][3:] for block in shared] == [[True, 1], [True, 1]]
        finish(engine)
        reader.read()
        assert reader.owned() == set()
        assert set(shared) <= set(reader.cells), "they are idle and cached"
        assert len(reader.cells) == first.num_cached == reader.totals["cached_blocks"]
        engine.reset_prefix_cache()
        reader.read()
        assert reader.cells == {}
        assert reader.num_whole == 1

    def test_of_the_host_are_told_apart(self) -> None:
        engine, view = watched(num_blocks=4, preemption="swap", num_host_blocks=8)
        reader = Reader(view)
        engine.add(request("A", range(100, 107), max_tokens=8))
        engine.add(request("B", range(200, 207), max_tokens=8))
        seen: set[int] = set()
        while engine.has_unfinished:
            engine.step()
            reader.read()
            seen |= {block for block in reader.owned() if block >= 4}
        assert seen
        assert reader.owned() == set()
        assert reader.totals["preemptions"] > 0

    def test_that_are_pinned_have_no_owner(self) -> None:
        engine, view = watched(num_blocks=32)
        engine.pin(list(range(100, 109)))
        finish(engine)
        reader = Reader(view)
        reader.read()
        assert [cell[0] for cell in reader.cells.values() if cell[2]] == [-1, -1]

    def test_that_get_other_content_have_no_hits(self) -> None:
        engine, view = watched(num_blocks=4)
        reader = Reader(view)
        hits = []
        for start in (100, 100, 200):
            engine.add(request(f"{start}", range(start, start + 12), max_tokens=1))
            finish(engine)
            reader.read()
            hits.append(sum(cell[4] for cell in reader.cells.values()))
        assert hits == [0, 2, 1], "the block in front is still cached"
        assert reader.totals["evictions"] > 0


class TestRequests:
    def test_say_how_far_they_are(self) -> None:
        engine, view = watched(
            scheduler={"name": "token_budget", "max_num_batched_tokens": 4, "max_num_seqs": 1}
        )
        reader = Reader(view)
        engine.add(request("A", range(10), max_tokens=2))
        engine.add(request("B", range(10), max_tokens=2))
        seen = []
        while engine.has_unfinished:
            engine.step()
            reader.read()
            seen.append([row[2:6] for row in reader.requests.values()])
        assert seen[:4] == [
            [["running", 10, 4, 0], ["waiting", 10, 0, 0]],
            [["running", 10, 8, 0], ["waiting", 10, 0, 0]],
            [["running", 10, 10, 1], ["waiting", 10, 0, 0]],
            [["waiting", 10, 0, 0]],
        ]
        assert reader.requests == {}
        totals = reader.totals
        assert (totals["finished"], totals["generated_tokens"]) == (2, 4)
        assert (totals["prompt_tokens"], totals["cached_tokens"]) == (20, 8)
        assert [step[2:4] for step in reader.steps[:4]] == [[4, 0], [4, 0], [2, 0], [0, 1]]

    def test_that_came_and_went_between_two_reports_are_counted(self) -> None:
        engine, view = watched()
        reader = Reader(view)
        reader.read()
        engine.add(request("A", range(5), max_tokens=2))
        finish(engine)
        report = reader.read()
        assert (report["requests"], report["ended"]) == ([], [])
        assert report["totals"]["finished"] == 1

    def test_are_bounded_in_number_and_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live_view, "MAX_REQUESTS", 3)
        engine, view = watched()
        for number in range(5):
            engine.add(request(f"{number}" * 1000, max_tokens=1))
        report = view.report()
        assert [len(row[1]) for row in report["requests"]] == [live_view.MAX_ID] * 3
        assert report["totals"]["waiting"] == 5

    def test_have_no_tokens_in_the_report(self) -> None:
        engine, view = watched()
        engine.add(request("A", range(1_000_000, 1_000_040), max_tokens=4))
        engine.step()
        assert "100000" not in json.dumps(view.report())


class TestCursors:
    def test_nothing_new_keeps_the_cursor(self) -> None:
        engine, view = watched()
        engine.add(request("A", max_tokens=1))
        finish(engine)
        first = view.report()
        again = view.report(first["cursor"])
        assert again["cursor"] == first["cursor"]
        assert not (again["whole"] or again["cells"] or again["requests"] or again["steps"])

    def test_of_another_engine_get_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, view = watched()
        engine.add(request("A", range(40), max_tokens=4))
        engine.step()
        now = view.report()["cursor"]
        for since in (0, 1, now + 1, now - 10**6):
            assert view.report(since)["whole"]
        monkeypatch.setattr(time, "time_ns", lambda: (now + 1) * 1_000_000)
        _, started_later = watched()
        assert started_later.report(now)["whole"]

    def test_that_are_too_old_get_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live_view, "MAX_ENDED", 2)
        engine, view = watched()
        old = view.report()["cursor"]
        for number in range(4):
            engine.add(request(f"{number}", max_tokens=2))
            engine.step()
            view.report()
            finish(engine)
            view.report()
        assert view.report(old)["whole"]

    def test_readers_that_skip_reports_come_to_the_same(self) -> None:
        engine, view = watched(num_blocks=6)
        readers = [Reader(view), Reader(view), Reader(view)]
        for number in range(6):
            engine.add(request(f"{number}", range(number % 3, 9 + number % 3), max_tokens=5))
        count = 0
        while engine.has_unfinished:
            engine.step()
            for every, reader in enumerate(readers, 1):
                if count % every == 0:
                    reader.read()
            count += 1
        for reader in readers:
            reader.read()
        first, *others = readers
        for other in others:
            assert (other.cells, other.requests, other.steps, other.totals) == (
                (first.cells, first.requests, first.steps, first.totals)
            )

    def test_steps_are_bounded(self) -> None:
        engine, view = watched({"steps": 3})
        engine.add(request("A", max_tokens=9))
        finish(engine)
        assert [step[0] for step in view.report()["steps"]] == [6, 7, 8]


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_the_picture_is_the_engines(situation: Situation) -> None:
    """Whatever happens: preemptions, swaps, forks, aborts, failures."""
    engine, view = watched(**situation.values({}))
    reader = Reader(view)
    step = engine.step
    differences = []

    def step_and_look() -> Any:
        outcome = step()
        reader.read()
        held = {
            block
            for group in engine.groups
            for sequence in group.live
            for block in sequence.table.blocks
        }
        on_device = {block for block in reader.owned() if block < engine.kv_cache.num_blocks}
        differences.append(held ^ on_device)
        assert reader.totals["free_blocks"] == engine.kv_cache.num_free
        return outcome

    engine.step = step_and_look  # type: ignore[method-assign]
    serve(engine, situation.workload)
    reader.read()
    assert not any(differences)
    assert reader.owned() == set()
    assert reader.num_whole == 1
    computed = sum(step[2] + step[3] for step in reader.steps)
    assert computed >= reader.totals["generated_tokens"] - reader.totals["finished"]
