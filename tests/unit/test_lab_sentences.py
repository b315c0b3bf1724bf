"""What is said about differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paged_plugins import lab as lab_package
from paged_plugins.lab.report.plain import table_lines
from paged_plugins.lab.results.results import Results, RunResult
from paged_plugins.lab.statistics.differences import Difference, differences
from paged_plugins.lab.statistics.phrases import (
    Phrase,
    change_text,
    interval_text,
    listed,
    subject,
    value_text,
)
from paged_plugins.lab.statistics.sentences import Conclusions
from paged_plugins.lab.study.arms import Arm, setting_text

BASE = {
    "hit_rate": 0.5,
    "e2e_ms_p50": 1000.0,
    "ttft_ms_p50": 100.0,
    "tpot_ms_p50": 20.0,
    "preemptions": 12.0,
    "steps": 400.0,
}
Effects = Mapping[str, float]


def results_of(
    arms: Mapping[str, Mapping[str, Effects]],
    *,
    num_seeds: int = 6,
    workloads: Sequence[str] = ("chat",),
    places: Sequence[int | None] = (None,),
) -> Results:
    """Results in which arms change measures by a factor, seeds vary by a fifth, and each run by
    one in a thousand where its arm has any effect.

    Args:
        arms: effects by value of the axis and by workload or place (``chat``, ``128``).
        places: values of ``num_blocks``; each has a reference of its own.
    """
    planned, runs = [], []
    for num_blocks in places:
        around = {} if num_blocks is None else {"num_blocks": num_blocks}
        suffix = "" if num_blocks is None else f", num_blocks={num_blocks}"
        reference = f"evictor=lru{suffix}"
        for name in ("lru", *arms):
            label = f"evictor={name}{suffix}"
            changes = {"evictor": name, **around}
            planned.append(
                Arm(label=label, changes=changes, axis="evictor", compared_with=reference)
            )
            for workload in workloads:
                effects = arms.get(name, {}).get(str(num_blocks or workload), {})
                runs += [
                    RunResult(
                        arm=label,
                        workload=workload,
                        seed=seed,
                        measures=_measured(seed, workload, name, effects),
                    )
                    for seed in range(num_seeds)
                ]
    return Results(arms=planned, workloads=list(workloads), seeds=range(num_seeds), runs=runs)


def _measured(seed: int, workload: str, name: str, effects: Effects) -> dict[str, float]:
    common = np.random.default_rng([seed, len(workload)])
    own = np.random.default_rng([seed, *map(ord, name + workload)])
    return {
        measure: value
        * common.uniform(0.9, 1.1)
        * effects.get(measure, 1.0)
        * (own.uniform(0.999, 1.001) if measure in effects else 1.0)
        for measure, value in BASE.items()
    }


def said(results: Results) -> list[str]:
    return Conclusions.of(results).sentences


BETTER = {"hit_rate": 1.1, "e2e_ms_p50": 0.9}
WORSE = {"hit_rate": 0.8, "tpot_ms_p50": 1.5}


def test_every_phrase_of_the_table_is_said_somewhere() -> None:
    lab = Path(lab_package.__file__).parent
    sources = "".join(path.read_text("utf-8") for path in lab.rglob("*.py"))
    assert [each.name for each in Phrase if f"Phrase.{each.name}" not in sources] == []


def test_an_equal_arm_moves_nothing() -> None:
    assert said(results_of({"twin": {}})) == [
        "evictor: nothing moved",
        "evictor=twin: nothing moved",
    ]


def test_a_sentence_names_what_moved_the_better_first() -> None:
    *_, last = said(results_of({"x": {"chat": {**BETTER, "tpot_ms_p50": 1.5, "steps": 2.0}}}))
    parts = ["hit rate +5.", " completion p50 -10", ", but TPOT p50 +50", ", and steps +100"]
    places = [last.index(part) for part in parts]
    assert places == sorted(places)
    assert last.startswith("evictor=x: ")
    assert last.endswith("; nothing else moved")


def test_nothing_else_is_not_said_where_all_moved() -> None:
    *_, last = said(results_of({"x": {"chat": dict.fromkeys(BASE, 0.5)}}))
    assert "nothing" not in last


def test_many_measures_are_named_without_numbers() -> None:
    names = [
        "hit_rate",
        *(
            f"{kind}_ms_{part}"
            for kind in ("ttft", "e2e", "tpot", "queueing")
            for part in ("p50", "p90", "p99")
        ),
    ]
    both = {"base": dict.fromkeys(names, 1.0), "evictor=x": dict.fromkeys(names, 0.5)}
    results = Results(
        arms=[Arm(label="base"), Arm(label="evictor=x", changes={"evictor": "x"}, axis="evictor")],
        workloads=["w"],
        seeds=range(6),
        runs=[
            RunResult(arm=arm, workload="w", seed=seed, measures=measured)
            for arm, measured in both.items()
            for seed in range(6)
        ],
    )
    *_, last = said(results)
    assert last.count("%") == 7
    assert "; also better: TPOT p90, TPOT p99, queueing p50, " in last
    assert "nothing" not in last


def test_workloads_are_named_where_there_are_several() -> None:
    results = results_of({"x": {"chat": BETTER}}, workloads=["chat", "burst"])
    assert said(results)[-2].startswith("evictor=x on chat: hit rate +5")
    assert said(results)[-1] == "evictor=x on burst: nothing moved"
    assert any("beats lru by 5" in text and "on chat; equals lru" in text for text in said(results))


def test_the_answer_says_where_a_value_is_better_and_in_which_order_they_are() -> None:
    results = results_of(
        {
            "slru": {"128": {"hit_rate": 1.08}, "192": {"hit_rate": 1.02}},
            "mru": {"128": {"hit_rate": 1.2}, "192": {"hit_rate": 0.9}},
        },
        places=[128, 192, 256],
    )
    text = said(results)
    assert text[0].startswith("evictor, hit rate: slru beats lru by 1.0 to 4.0 points at ")
    assert text[0].endswith("num_blocks=128 and 192; equals lru at num_blocks=256")
    assert "mru beats lru by 10" in text[1]
    assert "loses to lru by 5.1 points at num_blocks=192" in text[1]
    assert "num_blocks=128: mru 60" in text[2]
    assert text[2].index("ahead of slru") < text[2].index("ahead of lru")
    assert "num_blocks=192: slru" in text[3]
    assert text[4].startswith("evictor=slru at num_blocks=128: hit rate +4.0 points [")


def test_arms_whose_order_cannot_be_claimed_are_level() -> None:
    text = said(results_of({"slru": {"chat": BETTER}, "twin": {"chat": BETTER}}))
    order = next(each for each in text if "ahead of" in each)
    assert "about level with" in order


def test_requests_that_are_refused_in_all_arms_are_said() -> None:
    results = results_of({"twin": {}})
    runs = [replace(run, measures={**run.measures, "failed": 14.0}) for run in results.runs]
    told = "chat: 14 requests a run were refused or ignored in "
    assert said(replace(results, runs=runs))[0] == f"{told}all arms"
    some = [run if "twin" in run.arm else old for run, old in zip(runs, results.runs, strict=True)]
    text = said(replace(results, runs=some))
    assert text[0] == f"{told}1 of 2 arms"
    refused = [replace(run, failure="request 'a' is too long") for run in some[-2:]]
    text = said(replace(results, runs=[*some[:-2], *refused]))
    assert text[0].endswith("in 1 of 2 arms, the first: request 'a' is too long")


@pytest.mark.parametrize("num_seeds", [2, 6])
def test_seeds_that_draw_nothing_are_said(num_seeds: int) -> None:
    results = results_of({"x": {"chat": BETTER}}, num_seeds=num_seeds)
    first = {run.arm: run.measures for run in results.runs if run.seed == 0}
    runs = [replace(run, measures=first[run.arm]) for run in results.runs]
    start = "chat: all seeds gave the same result"
    assert any(each.startswith(start) for each in said(replace(results, runs=runs)))
    assert not any(each.startswith(start) for each in said(results))


def test_an_axis_that_moved_none_of_the_usual_measures_is_judged_by_others() -> None:
    results = results_of({"x": {"chat": {"ttft_ms_p90": 2.0}}})
    runs = [
        replace(run, measures={"tpot_ms_p99": 30.0 * run.measures["hit_rate"] ** ("x" in run.arm)})
        for run in results.runs
    ]
    text = said(replace(results, runs=runs))
    assert text[0].startswith("evictor, TPOT p99: x beats lru by ")


def test_no_order_puts_an_arm_ahead_that_does_not_clearly_differ() -> None:
    """The best mean, of an arm that varies much, level with the second, which beats the base."""
    results = results_of({"wild": {}, "good": {"chat": {"hit_rate": 1.1}}})
    wild = [2.0, 0.7, 1.9, 0.8, 1.5, 1.2]
    runs = [
        replace(run, measures={"hit_rate": run.measures["hit_rate"] * wild[run.seed]})
        if "wild" in run.arm
        else run
        for run in results.runs
    ]
    text = said(replace(results, runs=runs))
    assert "evictor, hit rate: wild does not clearly differ from lru" in text
    assert any("good beats lru" in each for each in text)
    assert not any("ahead of" in each for each in text)


def test_goodput_is_the_answer_where_limits_are_given() -> None:
    results = results_of({"x": {"chat": BETTER}})
    runs = [
        replace(run, measures={**run.measures, "goodput_per_s": 3.0 if "x" in run.arm else 2.0})
        for run in results.runs
    ]
    results = replace(results, runs=runs)
    assert said(results)[0].startswith("evictor, goodput: x")


@pytest.mark.parametrize(
    ("num_seeds", "start"), [(1, "one seed is too few"), (5, "5 seeds are too few")]
)
def test_too_few_seeds_are_said(num_seeds: int, start: str) -> None:
    text = said(results_of({"x": {"chat": BETTER}, "twin": {}}, num_seeds=num_seeds))
    assert text[0] == f"{start} to claim a difference with 95% confidence; run 6"
    assert text[1:] == ["evictor=twin: nothing moved"]


def difference(change: float, low: float, high: float, measure: str, **more: bool) -> Difference:
    fields = {"relative": measure != "hit_rate", "moved": low * high > 0} | more
    return Difference(
        "x", "base", "w", measure, base=1, value=2, change=change, low=low, high=high, **fields
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (difference(2.1, 1.31, 2.9, "hit_rate"), "+2.1 points [+1.3, +2.9]"),
        (difference(-3, -4, -2, "e2e_ms_p50"), "-3.0% [-4.0, -2.0]"),
        (difference(-31.2, -40, -20.4, "e2e_ms_p50"), "-31% [-40, -20]"),
        (difference(0.3, 0.02, 0.6, "e2e_ms_p50"), "+0.30% [+0.02, +0.60]"),
        (difference(-0.004, -0.02, 0.6, "e2e_ms_p50"), "-0.0% [-0.0, +0.6]"),
        (difference(0, 0, 0, "e2e_ms_p50"), "0% [0, 0]"),
        (difference(7, 5, 9, "preemptions", relative=False), "+7.0 [+5.0, +9.0]"),
        (difference(1234, 1000, 2000, "ttft_ms_p50"), "+1,234% [+1,000, +2,000]"),
        (difference(5, -np.inf, np.inf, "ttft_ms_p50", moved=False), "+5.0% [?, ?]"),
    ],
)
def test_a_change_is_written_so_that_its_interval_shows_what_it_excludes(
    found: Difference, expected: str
) -> None:
    assert f"{change_text(found)} {interval_text(found)}" == expected


def test_values_and_settings_are_written_as_people_read_them() -> None:
    assert value_text("hit_rate", 0.4126) == "41.3%"
    assert value_text("e2e_ms_p50", 1234.5) == "1,234 ms"
    assert value_text("preemptions", 17.0) == "17"
    assert setting_text({"name": "x", "on": True, "sizes": [1, None]}) == (
        "{name: x, on: true, sizes: [1, null]}"
    )
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert subject(Arm(label="odd"), Arm(label="base")) == "odd"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_and_marks_what_is_claimed(width: int) -> None:
    results = results_of({"slru": {"128": BETTER, "256": WORSE}, "twin": {}}, places=[128, 256])
    lines = list(table_lines(results, differences(results), width))
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count(" *") == 4
    assert "num_blocks=128\nlru " in text
    for title in ("hit rate", "completion p50", "TTFT p50", "preemptions"):
        assert title in text


def test_measures_that_no_arm_changes_make_no_column() -> None:
    results = results_of({"x": {"chat": BETTER}})
    runs = [replace(run, measures={**run.measures, "evictions": 0.0}) for run in results.runs]
    results = replace(results, runs=runs)
    lines = list(table_lines(results, differences(results), 100))
    assert lines[-1] == "equal in all arms: TTFT p50, TPOT p50, preemptions, evictions, steps"
    assert "evictions" not in "".join(lines[:-1])
    equal = results_of({"twin": {}})
    (only,) = table_lines(equal, differences(equal), 100)
    assert only.startswith("equal in all arms: hit rate, ")


def test_the_order_begins_with_the_least_where_less_is_better() -> None:
    results = results_of({"fast": {"chat": {"e2e_ms_p50": 0.5}}, "twin": {}})
    order = next(text for text in said(results) if "ahead of" in text)
    assert order.startswith("evictor, completion p50: fast ")


def test_the_base_is_called_by_its_value_of_the_axis() -> None:
    results = Results(
        arms=[
            Arm(label="base", held={"evictor": "lru"}),
            Arm(label="evictor=x", changes={"evictor": "x"}, axis="evictor"),
        ],
        workloads=["w"],
        seeds=range(6),
        runs=[
            RunResult(arm=arm, workload="w", seed=seed, measures={"hit_rate": rate + seed / 100})
            for arm, rate in (("base", 0.4), ("evictor=x", 0.5))
            for seed in range(6)
        ],
    )
    assert said(results)[0] == "evictor, hit rate: x beats lru by 10.0 points"
