"""Documents in YAML, JSON and TOML, read within bounds on size, depth, expansion and digits."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from itertools import count
from pathlib import Path
from select import select
from typing import Any

import yaml

MAX_SIZE = 2**20
"""Bytes of a settings file, and characters that it may expand to."""
MAX_DEPTH = 64
"""Lists and tables inside each other."""
MAX_DIGITS = 100
"""Digits of a whole number, at most."""
PIPE_SECONDS = 5.0
"""Seconds that a pipe may be silent before it is given up."""


class DocumentError(ValueError):
    """Text is no document of its format, or goes beyond a bound."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line
        """Where, counted from 1; ``None``: the message says it, or it concerns the whole."""


def read_text(path: Path, max_size: int = MAX_SIZE) -> str:
    """Return the text of a file, or of a pipe or device that ends.

    Raises:
        OSError, ValueError: it cannot be read, is no text, is too large, or says nothing.
    """
    content = bytearray()
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", 0) as file:
        while True:
            if os.name != "nt" and not select([file], [], [], PIPE_SECONDS)[0]:
                raise ValueError(f"nothing was written to it for {PIPE_SECONDS:.0f} s")
            chunk = file.read(2**20)
            content += chunk or b""
            if len(content) > max_size:
                raise ValueError(f"it is larger than {max_size:,} bytes")
            if not chunk:
                return content.decode()


def parse_json(text: str, *, any_text: bool = False) -> Any:
    """Return the value that JSON text stands for; every key of an object is given once.

    Args:
        any_text: accept strings with NUL or half a surrogate pair, too.

    Raises:
        ValueError: it is not JSON, or goes beyond a bound.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_table, parse_int=_integer, parse_constant=_no_number
        )
    except RecursionError:
        raise DocumentError(_TOO_DEEP) from None
    _check(value, any_text)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table that TOML text stands for.

    Raises:
        ValueError: it is not TOML, or goes beyond a bound.
    """
    if _TOO_DEEP_KEY.search(text):  # tomllib takes quadratic time for it
        raise DocumentError(_TOO_DEEP)
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise DocumentError(_TOO_DEEP) from None
    _check(value)
    return value


def parse_yaml(text: str, max_size: int = MAX_SIZE) -> tuple[Any, yaml.Node | None]:
    """Return the value that YAML text stands for, and its node, which knows lines.

    Args:
        max_size: characters that it may expand to, each alias replaced by what it stands for.

    Raises:
        DocumentError: it is not YAML, goes beyond a bound, or gives a key twice.
    """
    try:
        _check_expansion(text, max_size)
        root = yaml.compose(text, _Loader)
        if root is None:
            return None, None
        _check_keys(root)
        value = _Loader("").construct_document(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DocumentError(f"not valid YAML: {problem:.200}", mark and mark.line + 1) from None
    except RecursionError:  # of merges
        raise DocumentError(_TOO_DEEP) from None
    _check(value)
    return value, root


def unfit(value: object) -> str | None:
    """Say why a single value is refused wherever it is read, or return ``None``."""
    if isinstance(value, str):
        if "\0" in value:
            return "text cannot contain the character NUL"
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            return "text contains bytes or escapes that are not Unicode"
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        return f"a number has more than {MAX_DIGITS} digits"
    return None


_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_KEY = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_TOO_DEEP_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_KEY}\.[ \t]*){{{MAX_DEPTH}}}", re.MULTILINE)
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]")
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader, whose every error says where it is."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            problem = f"{node.value!r:.60} is no {node.tag.rpartition(':')[2]}: {error}"
            raise yaml.constructor.ConstructorError(
                problem=problem, problem_mark=node.start_mark
            ) from None

    def construct_scalar(self, node: yaml.Node) -> Any:
        value = super().construct_scalar(node)
        if node.tag in _NUMBERS and ":" in value:
            raise ValueError("it would be read to base 60; quote it")
        if node.tag in _NUMBERS and _LEADING_ZERO.match(value):
            raise ValueError("leading zeros can mean base 8; leave them out, or quote it")
        if node.tag in _NUMBERS and len(value) > MAX_DIGITS + 1:
            raise ValueError(f"it has more than {MAX_DIGITS} digits")
        return value


def _check_expansion(text: str, max_size: int) -> None:
    """Follow the events of YAML, which nothing is built from yet."""
    size = 0
    sizes: dict[str | None, int] = {}
    """Size of the node that an anchor names."""
    above: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, _Loader):
        line = getattr(event.start_mark, "line", 0) + 1
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in above):
                raise DocumentError(f"*{event.anchor:.80} contains itself", line)
            size += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            size += 1 + len(event.value)
            sizes[event.anchor] = 1 + len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            above.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = above.pop()
            sizes[anchor] = size - before
        if len(above) > MAX_DEPTH:
            raise DocumentError(_TOO_DEEP, line)
        if size > 2 * max_size:
            raise DocumentError(
                f"its aliases expand to more than {2 * max_size:,} characters", line
            )


def _check_keys(root: yaml.Node) -> None:
    """Refuse a key that one table gives twice; those of tables merged into it may be repeated."""
    nodes, known = [root], {id(root)}
    for node in nodes:
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in keys:
                        line = key.start_mark.line + 1
                        raise DocumentError(f"the key {key.value!r:.80} is given twice", line)
                    keys.add((key.tag, key.value))
            below = [each for pair in node.value for each in pair]
        new = [each for each in below if id(each) not in known]
        known.update(map(id, new))
        nodes += new


def _check(value: Any, any_text: bool = False) -> None:
    """Refuse values that are too deep or unfit, level by level."""
    level: list[Any] = [value]
    for depth in count(1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, (dict, list, tuple, set)):
                if depth > MAX_DEPTH:
                    raise DocumentError(_TOO_DEEP)
                below += (*item, *item.values()) if isinstance(item, dict) else item
            elif not (any_text and isinstance(item, str)) and (problem := unfit(item)):
                raise DocumentError(problem)
        if not below:
            return
        level = below


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DocumentError(f"the key {twice!r:.80} is given twice in {table!s:.80}")
    return table


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:
        raise DocumentError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _no_number(name: str) -> Any:
    raise DocumentError(f"{name} is not JSON")
