"""Scenarios in files, and the traces recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import (
    ValidationError,
)

from paged_core.config.documents import parse_json, parse_yaml
from paged_core.errors import SettingsError
from paged_plugins.decisions.scenario import Scenario
from paged_plugins.decisions.trace import trace_problem
from paged_plugins.input_file import mistakes, read_file

MAX_FILE_SIZE = 2**28
"""Bytes of a scenario or a recorded case."""
_SUFFIXES = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario and, if it was recorded, its expected trace."""

    scenario: Scenario
    trace: list[dict[str, Any]] | None
    path: Path


def read_case(path: Path) -> Case:
    """Read a scenario, bare or with its trace, from YAML or JSON.

    Raises:
        SettingsError: the file is missing, broken, or not a scenario; the message says where.
    """
    content = _read_mapping(path)
    trace = None
    if "scenario" in content:
        trace = content.get("trace")
        content = content["scenario"]
        if trace is not None and (problem := trace_problem(trace)):
            raise SettingsError(f"{path}: {problem}")
    try:
        return Case(Scenario.model_validate(content), trace, path)
    except ValidationError as error:
        problems = mistakes(error, Scenario)
        raise SettingsError(f"{path} is not a scenario: {problems}") from None


def find_cases(paths: Iterable[Path]) -> list[Path]:
    """Return the files, and for each folder the scenarios and cases in it, by name.

    Raises:
        SettingsError: a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix in _SUFFIXES)
        if not inside:
            raise SettingsError(f"{path} has no scenario in it: no {', '.join(_SUFFIXES)} file")
        found += inside
    return found


def _read_mapping(path: Path) -> Mapping[str, Any]:
    text = read_file(path, MAX_FILE_SIZE)
    try:
        is_json = path.suffix == ".json"
        content = parse_json(text) if is_json else parse_yaml(text, MAX_FILE_SIZE)[0]
    except ValueError as error:
        line = getattr(error, "line", None)
        where = f", line {line}," if line else ""
        raise SettingsError(f"{path}{where} cannot be parsed: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping with the keys of a scenario")
    return content
