"""A scenario: an engine's settings and the requests it receives, with known output lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from paged_core.config.documents import parse_json, parse_yaml
from paged_core.errors import SettingsError
from paged_plugins.decisions.trace import read_file, trace_problem

MAX_FILE_SIZE = 2**28
"""Bytes of a scenario or a recorded case."""
MAX_PROMPT = 10_000_000
"""Largest prompt in tokens; a larger one is taken for a typing error."""
MAX_TOKENS = 100_000_000
"""Prompts and outputs of a scenario together."""
MAX_READS = 10**11
"""Tokens that all steps read back together, at most: for each output token, its whole sequence."""
FIRST_OWN_ID = 10**9
"""Token ids from here on are those of prompts given by their length, and generated ones."""
_MAX_STEPS = 10**12
_MAX_SECONDS = 1e12
_SHOWN = 5
"""Mistakes of a scenario that its error names."""
_SUFFIXES = (".json", ".yaml", ".yml")
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})", re.ASCII)

Step = Annotated[int, Strict(), Field(ge=0, lt=_MAX_STEPS)]
Seconds = Annotated[float, Strict(), Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Strict(), Field(gt=0, le=MAX_TOKENS)]


def _ranges(prompt: str) -> list[range]:
    found = [_RANGE.fullmatch(part) for part in prompt.split()]
    if not all(found):
        raise ValueError(
            f"the prompt {prompt!r:.80} is neither a length nor ranges such as "
            "'1000:1048 2000:2007'"
        )
    return [range(int(each[1]), int(each[2])) for each in found if each]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScenarioRequest(_Strict):
    """One request of a scenario."""

    id: StrictStr
    step: Step = 0
    at: Seconds | None = None
    prompt: StrictInt | StrictStr
    output: Count
    priority: Annotated[int, Strict(), Field(gt=-(2**63), lt=2**63)] = 0
    n: Count = 1
    cache_salt: StrictStr | None = None
    tenant: StrictStr = ""
    deadline: Seconds | None = None

    @model_validator(mode="after")
    def _can_be_served(self) -> ScenarioRequest:
        if self.at is not None and "step" in self.model_fields_set:
            raise ValueError("`step` and `at` exclude each other; give one of them")
        ranges = [range(self.prompt)] if isinstance(self.prompt, int) else _ranges(self.prompt)
        if not ranges or not all(ranges):
            raise ValueError(f"the prompt {self.prompt!r:.80} has no tokens, or an empty range")
        if sum(each.stop - each.start for each in ranges) > MAX_PROMPT:
            raise ValueError(f"the prompt {self.prompt!r:.80} has more than {MAX_PROMPT:,} tokens")
        if max(each.stop for each in ranges) > FIRST_OWN_ID:
            raise ValueError(
                f"the prompt {self.prompt!r:.80} has a token id of {FIRST_OWN_ID:,} or more"
            )
        return self

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return self.prompt if isinstance(self.prompt, int) else sum(map(len, _ranges(self.prompt)))

    def tokens(self, first_own: int) -> tuple[int, ...]:
        """Return the prompt; the ids of an integer prompt start at ``first_own``."""
        if isinstance(self.prompt, int):
            return tuple(range(first_own, first_own + self.prompt))
        return tuple(chain.from_iterable(_ranges(self.prompt)))


class ScenarioAbort(_Strict):
    """A request that is aborted just before a step is scheduled."""

    id: StrictStr
    step: Step


class Scenario(_Strict):
    """Settings and requests. ``settings`` are the engine's own, by keyword."""

    name: StrictStr
    about: StrictStr = ""
    settings: dict[StrictStr, Any]
    requests: tuple[ScenarioRequest, ...]
    aborts: tuple[ScenarioAbort, ...] = ()
    seconds_per_step: Annotated[Seconds, Field(gt=0)] = 1.0
    max_steps: Annotated[Step, Field(gt=0)] = 200

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        arrivals = {request.id: request.step for request in self.requests}
        if len(arrivals) < len(self.requests):
            raise ValueError("two requests have the same id")
        for abort in self.aborts:
            if abort.id not in arrivals:
                raise ValueError(f"`aborts` names {abort.id!r:.80}, which no request is called")
            if abort.step < arrivals[abort.id]:
                raise ValueError(f"`aborts` ends {abort.id!r:.80} before it has arrived")
        if "num_blocks" not in self.settings:
            raise ValueError("give settings.num_blocks: without a model it cannot be measured")
        if "observers" in self.settings:
            raise ValueError(
                "leave settings.observers out, which can write files; give --observers instead"
            )
        num_tokens = sum(each.length + each.n * each.output for each in self.requests)
        if num_tokens > MAX_TOKENS:
            raise ValueError(
                f"its prompts and outputs have {num_tokens:,} tokens together, and a replay takes "
                f"{MAX_TOKENS:,} at most; shorten them or split it"
            )
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
        items = error.errors(include_url=False)
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or 'scenario':.80}: "
            f"{item['msg'].removeprefix('Value error, '):.200}"
            for item in items[:_SHOWN]
        )
        more = f"; and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        raise SettingsError(f"{path} is not a scenario: {problems}{more}") from None


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
