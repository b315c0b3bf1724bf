"""The report of results: a page that needs nothing else, and Markdown."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paged_core.cli import main
from paged_plugins.lab.report import write_html, write_markdown
from paged_plugins.lab.report.contents import families
from paged_plugins.lab.report.drawing import drawing
from paged_plugins.lab.report.formats import html, markdown
from paged_plugins.lab.report.galleries import distributions, load, rate_sweeps
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.comparison import Comparison
from paged_plugins.lab.study.arms import BASE
from unit import studies
from unit.drawn_results import drawn_results

pytestmark = pytest.mark.heavy


HOSTILE = "<script>alert(1)</script>\"'&|`$x^2$_*\x00\ud800]("
_VOID = {"wbr", "meta", "link", "br", "img", "input", "hr"}
_LOADING = {"src", "href", "srcset", "data", "action", "poster"}

pytest.importorskip("matplotlib", reason="the extra `lab` is not installed")


class Page(HTMLParser):
    """Reads a page, and fails where it is not well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.source = text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for key, value in attrs:
            assert value is not None
            self.attributes.append((key, value))
            if key == "id":
                self.ids.append(value)
            if key in _LOADING:
                self.targets.append(value)
            self.targets += re.findall(r"url\(([^)]*)\)", value)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.targets += re.findall(r"url\(([^)]*)\)|@import", data)
        else:
            self.text += data


def page_of(results: Results, folder: Path) -> Page:
    """Write the page of results, and read it."""
    path = folder / "report.html"
    write_html(results, path)
    page = Page(path.read_text("utf-8"))
    assert all(target.startswith("#") for target in page.targets)
    assert {target[1:] for target in page.targets} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags
    return page


def words(text: str) -> str:
    """Return text with single spaces."""
    return " ".join(text.split())


def studied(started: str) -> Results:
    """Return the results of two axes, one of which does nothing."""
    settings = {"block_size": 16, "evictor": {"name": "lru"}}
    return drawn_results(
        {"scheduler=slow": 1.3, "victim=same": 1.0},
        manifest={
            "command": "paged-core lab run ablation.yaml",
            "settings": {BASE: settings, "scheduler=slow": {"block_size": 99}},
            "git": "f00",
            "started": started,
        },
    )


def said_of(results: Results) -> str:
    return markdown(Comparison.of(results))


def test_a_page_has_the_answer_the_differences_and_the_plots(tmp_path: Path) -> None:
    results = studied("2026-01-01")
    page = page_of(results, tmp_path)
    told = words(page.text)
    decided = re.findall(r"scheduler=slow base chat (\S+ ?\S*) \+\S+ \[[^]]*\] worse", told)
    assert {"TTFT p50", "completion p50"} <= {*decided}
    assert "victim=same base" not in told
    assert told.index("worse") < told.index("How to read this") < told.index("Differences")
    for said in ("8 seeds", "95% confidence", "is decided if its interval leaves out 0"):
        assert said in told
    assert "paged-core lab run ablation.yaml" in told
    assert "block_size: 16 evictor: {name: lru}" in told
    assert "99" not in told.partition("What was run")[2].partition("Every measure")[0]
    assert "2026-01-01" not in told
    assert "TTFT at most 500 ms, TPOT at most 50 ms" in told
    assert page.tags["svg"] > 10
    labels = [value for key, value in page.attributes if key == "aria-label"]
    assert any("Medians: base" in label for label in labels)
    told_of = [key for key, _ in page.attributes if key in {"aria-label", "aria-hidden"}]
    assert len(told_of) == page.tags["svg"] + len(re.findall('class="scroll" tab', page.source))
    assert html(Comparison.of(studied("2027-12-31"))) == page.source  # equal results, equal bytes


def test_names_from_files_are_shown_and_do_nothing(tmp_path: Path) -> None:
    made = drawn_results(
        {HOSTILE: 1.2}, workloads=[HOSTILE], seeds=6, manifest={HOSTILE: {HOSTILE: HOSTILE}}
    )
    arms = [replace(arm, changes={HOSTILE: HOSTILE}, axis=HOSTILE) for arm in made.arms[1:]]
    results = replace(made, arms=[made.arms[0], *arms])
    page = page_of(results, tmp_path)
    assert "<script>alert(1)</script>" in page.text
    write_markdown(results, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text("utf-8")
    outside = re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)
    assert "<script" not in outside.replace("\\<", "")
    assert not re.search(r"(?<!\\)\]\(", outside)
    rows = re.findall(r"^\|.*$", outside, re.MULTILINE)
    columns = {line.replace("\\|", "").count("|") for line in rows}
    assert columns == {3, 4, 7}


@pytest.mark.parametrize(
    ("slower", "options"),
    [
        ({}, {}),
        ({"victim=x": 1.2}, {"seeds": 0}),
        ({"victim=x": 1.2}, {"seeds": 1}),
        ({"victim=x": 1.0}, {"seeds": 6}),
        ({f"victim={number}": 1 + number / 9 for number in range(7)}, {"seeds": 2}),
    ],
    ids=["one arm", "no seed", "one seed", "equal arms", "many arms"],
)
def test_any_results_can_be_reported(
    slower: Mapping[str, float], options: Mapping[str, Any], tmp_path: Path
) -> None:
    results = drawn_results(slower, **{"seeds": 2, "records": False, **options})
    page = page_of(results, tmp_path)
    for label in slower:
        assert label in page.text
    write_markdown(results, tmp_path / "report.md")


def test_what_moved_is_called_better_or_worse() -> None:
    text = said_of(drawn_results({"victim=slow": 1.5, "victim=fast": 0.5}, seeds=8))
    row = next(line for line in text.splitlines() if line.startswith("| completion p50"))
    assert re.search(r"\*\*\+50% \[.*\] worse\*\* \| \*\*-50% \[.*\] better\*\*", row)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [(1, "One seed bounds nothing"), (5, "A decision needs 6 seeds: with 5, all"), (6, "missed")],
)
def test_the_number_of_seeds_says_what_can_be_claimed(seeds: int, said: str) -> None:
    assert said in said_of(drawn_results({"victim=slow": 1.5}, seeds=seeds))


def test_missing_runs_are_said() -> None:
    results = drawn_results({"victim=slow": 1.5}, seeds=7)
    assert "2 runs failed or were left out" in said_of(replace(results, runs=results.runs[2:]))
    assert "left out" not in said_of(results).partition("- A difference is decided")[0]


def test_simulated_times_are_called_so() -> None:
    model = {"name": "roofline", "device": "l4"}
    settings = {"executor": {"name": "simulated"}, "cost_model": model}
    results = drawn_results({"victim=slow": 1.5}, seeds=1)
    simulated = replace(results, manifest={"settings": {BASE: settings}})
    assert "cost model roofline (device l4) predicts" in said_of(simulated)
    real = replace(results, manifest={"settings": {BASE: {"executor": {"name": "local"}}}})
    assert "simulation" not in said_of(real)


def test_arms_are_split_between_axes_and_shown_beside_what_they_are_compared_with() -> None:
    slower = {f"{axis}={number}": 1.0 for axis in "abc" for number in range(3)}
    results = drawn_results(slower, seeds=1, records=False)
    found = families(results, 4)
    assert [family.title for family in found] == ["a", "b", "c"]
    assert [family.title for family in families(results, 6)] == ["a, b", "c"]
    assert [len(family.arms) for family in families(results, 2)] == [2, 1, 2, 1, 2, 1]
    base, first, second, *rest = results.arms
    around = [replace(arm, compared_with="a=0") for arm in (first, second)]
    several = families(replace(results, arms=[base, *around, *rest]), 9)
    assert [family.base.label for family in several] == ["a=0", BASE]
    assert several[0].title == "against a=0"


def test_workloads_that_differ_in_their_rate_alone_make_a_sweep() -> None:
    names = ["slow", "fast", "other", "drawn"]
    specs = [
        {"name": "slow", "arrivals": {"poisson": {"rate": 1.0}}, "requests": 4},
        {"name": "fast", "arrivals": {"poisson": {"rate": 8}}, "requests": 4},
        {"name": "other", "arrivals": {"poisson": {"rate": 9}}, "requests": 5},
        {"name": "drawn", "requests": 4},
        "chat",
    ]
    results = drawn_results({}, workloads=names, seeds=1, records=False)
    assert rate_sweeps(results) == []
    (sweep,) = rate_sweeps(replace(results, manifest={"workloads": specs}))
    assert sweep == [(1.0, "slow"), (8.0, "fast")]


def test_latency_is_drawn_against_rate_where_workloads_differ_in_it() -> None:
    specs = [{"name": f"w{rate}", "arrivals": {"rate": rate}} for rate in (1, 2)]
    made = drawn_results({"victim=x": 1.3}, workloads=["w1", "w2"], seeds=2, records=False)
    with drawing():
        gallery = load(replace(made, manifest={"workloads": specs}), families(made, 6), most=8)
    (group,) = gallery.groups
    assert gallery.question == "What does the rate of requests do to latency?"
    for title, picture in zip(
        ("TTFT p99", "TPOT p50", "completion p50", "goodput"), group.pictures, strict=True
    ):
        assert f'aria-label="{title} against the rate: ' in picture
    assert re.search(r"victim=x \S+ ms to \S+ ms", group.pictures[0])


def test_pictures_are_bounded_in_number() -> None:
    workloads = [f"w{number}" for number in range(9)]
    results = drawn_results({"victim=x": 1.3}, workloads=workloads, seeds=1)
    with drawing():
        gallery = distributions(results, families(results, 6), most=1)
    assert [group.title for group in gallery.groups] == ["w0"]
    assert gallery.num_left_out == 8


def test_the_commands_write_and_run_nothing_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, study = tmp_path / "results", str(studies.write(tmp_path, seeds=1))
    assert main(["lab", "run", study, "--output", str(results), "--workers", "1"], {}) == 0
    before = sorted(results.iterdir())
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("paged_plugins.lab.commands.studies.run_study", None)
    varied = ["compare", "chat", "--vary", "victim=newest,most_blocks", "--html"]
    for command in (["lab", "report", str(results)], [*varied, str(tmp_path / "page.html")]):
        assert main(command, {}) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.count("\n") == 1
        assert "`pip install 'paged-core[lab]'`" in err
        assert "`paged-core lab report --markdown FILE`" in err
    assert sorted(results.iterdir()) == before
    assert not (tmp_path / "page.html").exists()


def test_the_command_reports_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    study = str(studies.write(tmp_path, axes={"victim": ["newest", "fewest_computed"]}))
    assert main(["lab", "run", study, "--output", str(results), "--workers", "1"], {}) == 0
    capsys.readouterr()
    assert main(["lab", "report", str(results)], {}) == 0
    said = capsys.readouterr().out
    assert f"wrote {results / 'report.md'}\nwrote {results / 'report.html'}\n" in said
    text = (results / "report.md").read_text("utf-8")
    limit = "2 seeds: too few to decide anything with 95% confidence; run 6"
    assert said.startswith("equal in all arms: ") or limit in said
    assert f"- {limit}" in text
    page = (results / "report.html").read_text("utf-8")
    assert len(page) < 2_000_000
    only = tmp_path / "only.md"
    assert main(["lab", "report", str(results), "--markdown", str(only)], {}) == 0
    assert only.read_text("utf-8") == text
    assert "report.html" not in capsys.readouterr().out
    some = ["--measure", "hit_rate", "--measure", "evictions", "--markdown", str(only)]
    assert main(["lab", "report", str(results), *some], {}) == 0
    assert "throughput" in text
    assert "throughput" not in only.read_text("utf-8").partition("## What was run")[0]
    capsys.readouterr()
    assert main(["lab", "report", str(results), "--measure", "hitrate"], {}) == 2
    assert "did you mean 'hit_rate'" in capsys.readouterr().err
