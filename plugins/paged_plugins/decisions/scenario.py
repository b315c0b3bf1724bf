"""A scenario: an engine's settings and the requests it receives, with known output lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paged_core.errors import SettingsError
from paged_plugins.decisions.trace import trace_problem

MAX_PROMPT = 10_000_000
"""Largest prompt in tokens; a larger one is taken for a typing error."""


def _ranges(prompt: str) -> list[range]:
    try:
        bounds = [tuple(map(int, part.split(":"))) for part in prompt.split()]
        return [range(start, end) for start, end in bounds]
    except ValueError:
        raise ValueError(
            f"the prompt {prompt!r} is neither a length nor ranges such as '1000:1048 2000:2007'"
        ) from None


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScenarioRequest(_Strict):
    """One request of a scenario."""

    id: str
    step: int = Field(0, ge=0)
    at: float | None = Field(None, ge=0)
    prompt: int | str
    output: int = Field(gt=0)
    priority: int = 0
    n: int = Field(1, ge=1)
    cache_salt: str | None = None
    tenant: str = ""
    deadline: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _can_be_served(self) -> ScenarioRequest:
        if self.at is not None and "step" in self.model_fields_set:
            raise ValueError("`step` and `at` exclude each other; give one of them")
        ranges = [range(self.prompt)] if isinstance(self.prompt, int) else _ranges(self.prompt)
        if not ranges or not all(ranges):
            raise ValueError(f"the prompt {self.prompt!r} has no tokens, or an empty range")
        if sum(map(len, ranges)) > MAX_PROMPT:
            raise ValueError(f"the prompt {self.prompt!r} has more than {MAX_PROMPT:,} tokens")
        return self

    def tokens(self, first_own: int) -> tuple[int, ...]:
        """Return the prompt; the ids of an integer prompt start at ``first_own``."""
        if isinstance(self.prompt, int):
            return tuple(range(first_own, first_own + self.prompt))
        return tuple(chain.from_iterable(_ranges(self.prompt)))


class ScenarioAbort(_Strict):
    """A request that is aborted just before a step is scheduled."""

    id: str
    step: int = Field(ge=0)


class Scenario(_Strict):
    """Settings and requests. ``settings`` are the engine's own, by keyword."""

    name: str
    about: str = ""
    settings: dict[str, Any]
    requests: tuple[ScenarioRequest, ...]
    aborts: tuple[ScenarioAbort, ...] = ()
    seconds_per_step: float = Field(1.0, gt=0)
    max_steps: int = Field(200, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        ids = [request.id for request in self.requests]
        if len(set(ids)) < len(ids):
            raise ValueError("two requests have the same id")
        if "num_blocks" not in self.settings:
            raise ValueError("give settings.num_blocks: without a model it cannot be measured")
        return self


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
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'scenario'}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise SettingsError(f"{path} is not a scenario: {problems}") from None


def _read_mapping(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise SettingsError(f"{path} cannot be parsed: {said}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping with the keys of a scenario")
    return content
