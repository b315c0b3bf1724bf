"""Documents: what each format refuses, by its bounds and by its rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paged_core.settings import documents
from paged_core.settings.documents import (
    MAX_DEPTH,
    DocumentError,
    parse_json,
    parse_toml,
    parse_yaml,
    read_text,
)


def bomb(first: str, line: str) -> str:
    """Lines of which each names the one before it nine times."""
    lines = [first]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(line.format(name=name, nine=",".join([f"*{before}"] * 9)))
    return "\n".join(lines)


LISTS = bomb("a: &a [x,x,x,x,x,x,x,x,x]", "{name}: &{name} [{nine}]")
MERGES = bomb("a: &a {x: 1}", "{name}: &{name} {{<<: [{nine}]}}")
TEXTS = "a: &a " + "x" * 100_000 + "\nb: [" + ", ".join(["*a"] * 100) + "]"
LONG_CHAIN = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 500))


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "line", "message"),
        [
            (LISTS, 7, "its aliases expand to more than 2,097,152 characters"),
            (MERGES, 7, "its aliases expand to more than"),
            (TEXTS, 2, "its aliases expand to more than"),
            (LONG_CHAIN, None, "nested deeper than 64 levels"),
            ("[" * 100_000, 1, "nested deeper than 64 levels"),
            ("x: 1\na: &a [*a]", 2, r"\*a contains itself"),
            ("a: *b", 1, "undefined alias"),
            ("a: 2024-13-45", 1, "'2024-13-45' is no timestamp"),
            ("a: 0x_", 1, "'0x_' is no int"),
            ("a: !!int ''", 1, "'' is no int"),
            ("a: !!bool maybe", 1, "'maybe' is no bool"),
            ("a: !!python/object/apply:os.getcwd []", 1, "constructor for the tag"),
            ("a: 1:59", 1, "base 60; quote it"),
            ("a: 1\nb: [0100]", 2, "'0100' is no int: .*leading zeros can mean"),
            ("{010: 1}", 1, "leading zeros can mean"),
            ("a: -0_7", 1, "leading zeros can mean"),
            ("a: 00.5", 1, "'00.5' is no float: .*leading zeros can mean"),
            ("a: !!int 08", 1, "leading zeros can mean"),
            ("a: " + "9" * 101 + "9", 1, "more than 100 digits"),
            ("a: " + "9" * 5000, 1, "more than 100 digits"),
            ('a: "\\ud800"', 1, "invalid Unicode character"),
            ('a: "\\0"', None, "the character NUL"),
            ("a: \0", None, "control characters"),
            ("a: 1\nb: {c: 1, c: 2}", 2, "the key 'c' is given twice"),
            ("? [a]\n: 1", 1, "unhashable key"),
            ("a: 1\n---\nb: 1", 2, "another document"),
        ],
    )
    def test_what_is_refused(self, text: str, line: int | None, message: str) -> None:
        with pytest.raises(DocumentError, match=message) as caught:
            parse_yaml(text)
        assert caught.value.line == line
        assert len(str(caught.value)) < 300

    def test_aliases_and_merges_within_the_bounds(self) -> None:
        value, _ = parse_yaml("a: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}")
        assert value == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3}}

    def test_zeros_that_lead_nothing(self) -> None:
        value, _ = parse_yaml("[0, -0, 0.5, 0x10, 0b1, '010', \"007\", 100, 2024-01-05]")
        assert value[:-1] == [0, 0, 0.5, 16, 1, "010", "007", 100]

    def test_nothing_is_a_document(self) -> None:
        assert parse_yaml("# nothing") == (None, None)

    def test_merges_that_nest_too_deep(self) -> None:
        inside = "".join(f", &a{i} {{<<: *a{i - 1}}}" for i in range(1, 2000))
        with pytest.raises(DocumentError, match="nested deeper"):
            parse_yaml(f"x: [[[ &a0 {{k: 1}}{inside} ]]]\ny: {{<<: *a1999}}", 2**30)


class TestJson:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[" * 100_000, "nested deeper than 64 levels"),
            ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested deeper than 64 levels"),
            ("[NaN]", "NaN is not JSON"),
            ("9" * 102, "more than 100 digits"),
            ("9" * 5000, "more than 100 digits"),
            ('"\\ud800"', "not Unicode"),
            ('{"\\u0000": 1}', "the character NUL"),
            ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is given twice in {'a': 3, 'b': 2}"),
            ("[1,", "Expecting value"),
        ],
    )
    def test_what_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            parse_json(text)

    def test_values(self) -> None:
        text = '{"a": [1, 1000000000000000019884624838656, 0.5, null, true, "\\ud83d\\ude00"]}'
        assert parse_json(text) == {"a": [1, int(1e30), 0.5, None, True, "😀"]}
        assert parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)


class TestToml:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a = " + "[" * 100_000, "nested deeper than 64 levels"),
            (".".join("a" * 100_000) + " = 1", "nested deeper than 64 levels"),
            ("[" + '"a" . ' * 100_000 + "a]", "nested deeper than 64 levels"),
            ("a = {b=1, " + "a." * 100_000 + "c = 1}", "nested deeper than 64 levels"),
            ("a = " + "9" * 102, "more than 100 digits"),
            ("a = " + "9" * 5000, "4300 digits"),
            ('a = "\\u0000"', "the character NUL"),
            ("a = 1\na = 2", "Cannot overwrite"),
        ],
    )
    def test_what_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            parse_toml(text)

    def test_long_lists_and_texts_are_not_deep(self) -> None:
        text = "a = [" + "1.0, " * 200 + '"' + "a.b." * 200 + '"]\n[b.c.d]\ne = 1'
        assert parse_toml(text)["b"] == {"c": {"d": {"e": 1}}}


class TestReadText:
    def test_a_file_may_be_as_large_as_the_bound(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("x" * 1000)
        assert read_text(path, 1000) == "x" * 1000
        with pytest.raises(ValueError, match="larger than 999 bytes"):
            read_text(path, 999)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have no path there")
    def test_a_pipe_that_nothing_is_written_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(documents, "PIPE_SECONDS", 0.1)
        path = tmp_path / "pipe"
        os.mkfifo(path)
        with pytest.raises(ValueError, match="nothing was written to it"):
            read_text(path)


@pytest.mark.parametrize("parse", [parse_json, parse_toml, lambda text: parse_yaml(text)[0]])
def test_an_empty_key_is_a_key(parse: Callable[[str], Any]) -> None:
    text = '"" = 1' if parse is parse_toml else '{"": 1}'
    assert parse(text) == {"": 1}
