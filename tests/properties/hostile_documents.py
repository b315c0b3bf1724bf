"""Documents that were valid before they were changed, by structure and by characters."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from hypothesis import strategies as st

HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    999_999,
    2**31,
    2**63,
    10**12,
    10**99,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "auto",
    "null",
    "80%",
    "9" * 400,
    "9" * 5000,
    "0x_",
    "2024-13-45",
    "5:3",
    "0:40 7:9",
    "x\0y",
    "\ud800",
    "[" * 5000,
    '{"name":',
    [],
    [[1]],
    {},
    {"name": "nothing"},
    {1: 2},
]
"""Values that are wrong in most places, and right in some."""

FRAGMENTS = [
    *("[", "]", "{", "}", ":", ",", "- ", "? ", "\n", "\t", "  ", '"', "'", "#", "---\n", "%", "@"),
    *("&a ", "*a", "<<: *a", "<<: ", "!!int ", "!!float ''", "!!timestamp x", "!x ", "!!binary é"),
    *("0x_", "0b", "1:59", ".inf", ".nan", "1e999", "-", "_", "\\ud800", "\\0", "\0", "\ufeff"),
    *("[" * 200, "- " * 200, "{a: " * 100, "a." * 200, "9" * 5000, "&a [" * 70, "*a, " * 500),
]
"""Values over which parsers stumble."""

values = st.one_of(st.sampled_from(HOSTILE), st.integers(), st.floats(), st.text(max_size=8))


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """Return a copy in which up to four values are replaced, removed or doubled."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, 4))):
        above: Any = None
        key: Any = None
        inside = document
        while isinstance(inside, (dict, list)) and inside:
            if above is not None and draw(st.booleans()):
                break
            above = inside
            keys = list(inside) if isinstance(inside, dict) else range(len(inside))
            key = draw(st.sampled_from(keys))
            inside = above[key]
        if above is None:
            continue
        action = draw(st.sampled_from(["replace", "replace", "remove", "double"]))
        if action == "replace":
            above[key] = copy.deepcopy(draw(values))
        elif action == "remove":
            del above[key]
        elif isinstance(above, list):
            above.append(copy.deepcopy(inside))
        else:
            above[draw(st.text(max_size=5))] = copy.deepcopy(inside)
    return document


@st.composite
def contents(draw: st.DrawFn, valid: Any, formats: tuple[str, ...]) -> tuple[str, bytes]:
    """Return the suffix of a file and its content, in one of the formats."""
    kind = draw(st.sampled_from(formats))
    document = draw(changed(valid))
    try:
        text = json.dumps(document) if kind == ".json" else yaml.safe_dump(document)
    except (ValueError, TypeError):  # numbers that cannot be written
        text = repr(document)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        text = text[:start] + draw(st.sampled_from(FRAGMENTS)) + text[end:]
    content = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        content = draw(st.binary(max_size=40)) + content
    return kind, content
