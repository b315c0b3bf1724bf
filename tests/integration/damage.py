"""Damage to the files of a checkpoint, as Hypothesis draws it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Damage = tuple[str, Callable[[Path], None]]
"""A description, and what is done to a folder."""

_NUMBERS = [0, -1, 1, 2, 3, 7, 64, 1.5, -0.5, 1e-320, 1e308, 10**9, 2**31, 2**63, 10**18, 10**400]
_TEXTS = [
    "",
    "x",
    "no",
    "\ud800",
    "\x00",
    "a" * 5000,
    "../x",
    "/etc/passwd",
    "F32",
    "I32",
    "F8_E4M3",
]
_LISTS: list[Any] = [[], [0], [[]], [None], ["x", 5], [10**400]]
_OBJECTS: list[Any] = [{}, {"a": 1}, {"type": "Replace"}, {"content": None}]
ODD = [None, True, False, float("nan"), float("inf"), *_NUMBERS, *_TEXTS, *_LISTS, *_OBJECTS]


def lengths(short: int, long: int) -> pytest.MarkDecorator:
    """Numbers of examples of a test that takes ``examples``; the larger one is long."""
    marked = pytest.param(long, marks=pytest.mark.long)
    return pytest.mark.parametrize("examples", [short, marked])


def for_examples(examples: int, check: Callable[[st.DataObject], None]) -> None:
    """Call ``check`` with what is drawn, so many times."""

    @settings(deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        check(data)

    run()


def _nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


WHOLE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "null": lambda path: path.write_text("null"),
    "list": lambda path: path.write_text("[]"),
    "object": lambda path: path.write_text("{}"),
    "text": lambda path: path.write_text('"x"'),
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff\xfe"}'),
    "UTF-16": lambda path: path.write_bytes('{"a": 1}'.encode("utf-16")),
    "deep": lambda path: path.write_text(_nested(100_000)),
    "rather deep": lambda path: path.write_text(_nested(60)),
    "deep lists": lambda path: path.write_text("[" * 200_000),
    "long integer": lambda path: path.write_text('{"a": ' + "9" * 10_000 + "}"),
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "nothing": lambda path: None,
}
"""Things that may be there in place of a file."""


def change_bytes(path: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.unlink()
    path.write_bytes(content)


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    path.unlink()
    path.write_text(dumps(change(content)))


def header_of(path: Path) -> Any:
    """Read the header of a file of safetensors."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length])


def change_header(path: Path, change: Callable[[Any], Any]) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = dumps(change(header_of(path))).encode()
    path.unlink()
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def dumps(content: Any) -> str:
    """Return JSON with integers of any length."""
    marks: dict[str, int] = {}

    def marked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [marked(item) for item in value]
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 64:
            marks[f"<{len(marks)}>"] = value
            return f"<{len(marks) - 1}>"
        return value

    text = json.dumps(marked(content))
    for mark, value in marks.items():
        text = text.replace(json.dumps(mark), str(value), 1)
    return text


@st.composite
def mutations(draw: st.DrawFn, content: Any) -> tuple[str, Any]:
    """Draw one changed value anywhere in ``content``; return what, and the changed content."""
    changed = deepcopy(content)
    place, path = changed, ""
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        path += f"/{key}"
        child = place[key]
        if not (isinstance(child, dict | list) and child) or draw(st.integers(0, 3)) == 0:
            break
        place = child
    kind = draw(st.sampled_from(["value", "value", "value", "missing", "more", "number"]))
    if kind == "missing":
        del place[key]
    elif kind == "more" and isinstance(place, dict):
        place[draw(st.sampled_from([f"{key}x", "", "__metadata__", "model.layers.9.x"]))] = child
    elif kind == "number" and isinstance(child, int) and not isinstance(child, bool):
        place[key] = child + draw(st.sampled_from([-4, -1, 1, 4, child]))
    else:
        place[key] = draw(st.sampled_from(ODD))
    return f"{path} {kind}: {str(place)[:60]}", changed


@st.composite
def byte_changes(draw: st.DrawFn, size: int, head: int) -> Callable[[bytearray], None]:
    """Draw a change of bytes, most of them in the first ``head``."""
    index = draw(st.integers(0, max(0, min(size, head) - 1)) | st.integers(0, max(0, size - 1)))
    new = draw(st.binary(max_size=9))
    old = draw(st.integers(0, 9))

    def change(content: bytearray) -> None:
        content[index : index + old] = new

    return change
