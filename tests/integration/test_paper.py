"""The figures under examples/paper have the published shape, and a page shows them all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from architecture.snippets import ROOT
from paged_core.engine.contexts import AllocatorContext
from paged_core.errors import OutOfBlocks

pytestmark = pytest.mark.heavy


FOLDER = ROOT / "examples" / "paper"
PAGE = ROOT / "docs" / "reproductions.md"


@pytest.fixture(scope="module")
def paper() -> Iterator[Any]:
    """The script, as a module."""
    path = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield import_module("reproduce")
    sys.path[:] = path


@pytest.fixture
def rows(paper: Any) -> Any:
    """Measures a figure with a share of its requests, and returns the rows of its table."""

    def measured(name: str, scale: float) -> dict[str, Any]:
        figure = paper.figures()[name].scaled(scale).model_copy(update={"seeds": 1})
        found: dict[str, Any] = paper.FIGURES[name](figure).rows
        return found

    return measured


def test_every_file_is_measured_and_documented(paper: Any) -> None:
    assert set(paper.figures()) == set(paper.FIGURES)
    text = PAGE.read_text("utf-8")
    assert [name for name in paper.FIGURES if name not in text] == []


@pytest.mark.long
def test_a_cache_without_paging_holds_few_tokens(rows: Any) -> None:
    held = {name: row[0] for name, row in rows("memory_shares", 0.12).items()}
    assert 10 < held["Orca max"] < held["Orca pow2"] < held["Orca oracle"] < 50
    assert held["vLLM"] > 90


@pytest.mark.long
def test_samples_share_their_prompt(rows: Any) -> None:
    saved = {name: row[0] for name, row in rows("parallel_sampling", 0.3).items()}
    for lengths, most in (("alpaca", 15), ("sharegpt", 35)):
        few, some, many = (saved[f"{lengths} {count}"] for count in (2, 4, 6))
        assert 2 < few < some < many < most
    assert all(saved[f"sharegpt {count}"] > 1.5 * saved[f"alpaca {count}"] for count in (2, 4, 6))


@pytest.mark.long
def test_beams_share_more_than_their_prompt(rows: Any) -> None:
    saved = {name: row[0] for name, row in rows("beam_search", 0.1).items()}
    for lengths in ("alpaca", "sharegpt"):
        few, some, many = (saved[f"{lengths} {count}"] for count in (2, 4, 6))
        assert 30 < few < some < many < 85
    assert all(saved[f"sharegpt {count}"] > saved[f"alpaca {count}"] for count in (2, 4, 6))


@pytest.mark.long
def test_the_latency_explodes_in_the_order_of_the_memory_that_is_wasted(paper: Any) -> None:
    figure = paper.figures()["request_rate"]
    latencies = [
        paper.normalised_latency(
            paper.at_rate(figure.settings(arm), figure.workloads[0], rate=4, seconds=20)
        )
        for arm in ("vLLM", "Orca oracle", "Orca max")
    ]
    assert all(2 * better < worse for better, worse in pairwise(latencies))


@pytest.mark.long
def test_paging_sustains_a_higher_rate(rows: Any) -> None:
    ratios = {name: row[1] for name, row in rows("request_rate", 0.3).items()}
    assert 1.3 < ratios["Orca oracle"] < ratios["Orca pow2"] < ratios["Orca max"] < 8
    assert ratios["Orca max"] < ratios["FasterTransformer"] < 22


@pytest.mark.long
def test_a_shared_prefix_pays_the_more_the_longer_it_is(rows: Any) -> None:
    measured = rows("shared_prefix", 0.2)
    assert 1.3 < measured["one-shot"][-1] < 2.5 < measured["five-shot"][-1] < 5


def test_swapping_costs_much_where_blocks_are_small(paper: Any) -> None:
    figure = paper.figures()["block_size"]
    times = [paper.restoring(figure.settings("swap", block_size=size)) for size in (1, 4, 16, 64)]
    computed, moved = zip(*times, strict=True)
    assert len(set(computed)) == 1
    assert all(later < sooner for sooner, later in pairwise(moved))
    assert moved[0] > 5 * computed[0]


@pytest.mark.long
def test_very_large_blocks_serve_short_sequences_worse(rows: Any) -> None:
    measured = rows("block_size", 1.0)
    assert measured["256"][2] > 1.2 * measured["16"][2]
    assert measured["1"][1] > 1.2 * measured["64"][1]


@pytest.mark.long
def test_chunks_bound_the_time_between_tokens(rows: Any) -> None:
    whole, large, small = rows("chunked_prefill", 0.3).values()
    longest = 3
    assert whole[longest] > 5 * large[longest]
    assert large[longest] > 2 * small[longest]


@pytest.mark.long
def test_without_the_cache_tokens_take_longer(rows: Any) -> None:
    assert all(1.5 < ratio < 10 for *_, ratio in rows("kv_cache", 1.0).values())


def test_the_command_prints_a_table(paper: Any, capsys: pytest.CaptureFixture[str]) -> None:
    paper.main(["chunked_prefill", "--scale", "0.05"])
    assert "| V0, prefill first" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        paper.main(["nothing"])
    assert "there are memory_shares" in capsys.readouterr().err


@pytest.mark.long
def test_it_is_so_on_a_real_engine(rows: Any) -> None:
    whole, small = rows("chunked_prefill_demo", 1.0).values()
    longest = 3
    assert whole[longest] > 2 * small[longest]


@given(st.integers(1, 70), st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30))))
@hypothesis_settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_the_buddy_allocator_gives_regions_that_do_not_overlap(
    paper: Any, num_blocks: int, calls: list[tuple[int, int]]
) -> None:
    """A call reserves so many blocks; then the run of that number is freed, if there is one."""
    buddy = import_module("buddy")
    context = AllocatorContext(
        num_blocks=num_blocks, block_size=4, max_model_len=64, evictor=cast("Any", None)
    )
    allocator = buddy.BuddyAllocator(buddy.BuddySettings(), context)
    runs: list[list[int]] = []
    for count, freed in calls:
        size = 1 << (count - 1).bit_length()
        used = {block for run in runs for block in region(run)}
        is_free = any(
            used.isdisjoint(range(start, start + size))
            for start in range(0, num_blocks - size + 1, size)
        )
        assert allocator.can_reserve(count) == is_free
        if is_free:
            run = allocator.reserve(count)
            assert used.isdisjoint(region(run))
            assert run == list(range(run[0], run[0] + count))
            runs.append(run)
        else:
            with pytest.raises(OutOfBlocks):
                allocator.reserve(count)
        if freed < len(runs):
            allocator.free(runs.pop(freed))
        assert allocator.num_free == num_blocks - sum(len(region(run)) for run in runs)


def region(run: list[int]) -> range:
    """The region that a run begins."""
    return range(run[0], run[0] + (1 << (len(run) - 1).bit_length()))


def test_the_buddy_allocator_reserves_as_the_paper_says(paper: Any) -> None:
    buddy = import_module("buddy")
    context = AllocatorContext(
        num_blocks=64, block_size=1, max_model_len=60, evictor=cast("Any", None)
    )
    expected = {"max": 64, "pow2": 16, "oracle": 8}  # of 60, 3 + 8 and 8 tokens
    for reserve, count in expected.items():
        allocator = buddy.BuddyAllocator(buddy.BuddySettings(reserve=reserve), context)
        assert allocator.blocks_to_reserve(3, 8) == count
