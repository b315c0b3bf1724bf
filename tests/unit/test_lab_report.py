"""The report of results: a page that needs nothing else, and Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from paged_plugins.lab.report import write_html, write_markdown
from paged_plugins.lab.results import BASE, Results
from paged_plugins.lab.statistics.differences import differences
from paged_plugins.lab.statistics.sentences import sentences
from unit.drawn_results import drawn_results

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


def test_a_page_has_the_answer_the_differences_and_the_plots(tmp_path: Path) -> None:
    results = drawn_results(
        {"scheduler=slow": 1.3, "victim=same": 1.0},
        manifest={
            "command": "paged-core lab run ablation.yaml",
            "settings": {BASE: {"block_size": 16}, "scheduler=slow": {"block_size": 99}},
            "git": "f00",
            "started": "2026-01-01",
        },
    )
    page = page_of(results, tmp_path)
    told = words(page.text)
    answers = sentences(results, differences(results))
    assert answers
    for sentence in answers:
        assert sentence in told
    assert told.index(answers[0]) < told.index("How to read this") < told.index("goodput 3")
    for said in ("8 seeds", "95% confidence", "has moved if its interval leaves out 0"):
        assert said in told
    assert "paged-core lab run ablation.yaml" in told
    assert "block_size: 16" in told
    assert "block_size: 99" not in told
    assert "2026-01-01" not in told
    assert "TTFT at most 500 ms, TPOT at most 50 ms" in told
    assert page.tags["svg"] > 20
    labels = [value for key, value in page.attributes if key == "aria-label"]
    assert any("Medians: base" in label for label in labels)
    assert any("on average" in label for label in labels)
    told_of = [key for key, _ in page.attributes if key in {"aria-label", "aria-hidden"}]
    assert len(told_of) == page.tags["svg"] + len(re.findall('class="scroll" tab', page.source))


def test_equal_results_make_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        results = drawn_results({"victim=x": 1.1}, seeds=2, manifest={"started": name})
        write_html(results, tmp_path / f"{name}.html")
        write_markdown(results, tmp_path / f"{name}.md")
    for suffix in ("html", "md"):
        first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
        assert first == second


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
    assert columns == {3, 4}


@pytest.mark.parametrize(
    ("slower", "options"),
    [
        ({}, {}),
        ({"victim=x": 1.2}, {"seeds": 0}),
        ({"victim=x": 1.2}, {"seeds": 1}),
        ({"victim=x": 1.2}, {"seeds": 3}),
        ({"victim=x": 1.0}, {"seeds": 6}),
        ({"victim=x": 1.2}, {"seeds": 6}),
        ({f"victim={number}": 1 + number / 9 for number in range(9)}, {"seeds": 2}),
    ],
    ids=["one arm", "no seed", "one seed", "few seeds", "equal arms", "no records", "many arms"],
)
def test_any_results_can_be_reported(
    slower: Mapping[str, float], options: Mapping[str, Any], tmp_path: Path
) -> None:
    results = drawn_results(slower, **{"seeds": 2, "records": False, **options})
    page = page_of(results, tmp_path)
    for label in slower:
        assert label in page.text
    write_markdown(results, tmp_path / "report.md")
