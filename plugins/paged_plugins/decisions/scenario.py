"""A scenario: an engine's settings and the requests it receives, with known output lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paged_core.errors import SettingsError


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

    def tokens(self, first_own: int) -> tuple[int, ...]:
        """Return the prompt; the ids of an integer prompt start at ``first_own``.

        Raises:
            SettingsError: the ranges cannot be read.
        """
        if isinstance(self.prompt, int):
            return tuple(range(first_own, first_own + self.prompt))
        try:
            bounds = [tuple(map(int, part.split(":"))) for part in self.prompt.split()]
            return tuple(token for start, end in bounds for token in range(start, end))
        except ValueError:
            raise SettingsError(
                f"prompt of request {self.id!r}: {self.prompt!r} is neither a length nor ranges "
                "such as '1000:1048 2000:2007'"
            ) from None


class ScenarioAbort(_Strict):
    """A request that is given up just before a step is scheduled."""

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
            raise ValueError("settings.num_blocks must be given: there is no memory to measure")
        return self


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario and, if it was recorded, the trace that it must give."""

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
    try:
        return Case(Scenario.model_validate(content), trace, path)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'scenario'}: {item['msg']}"
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
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} cannot be parsed: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping with the keys of a scenario")
    return content
