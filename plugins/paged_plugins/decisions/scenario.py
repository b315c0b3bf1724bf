"""A scenario: settings and requests with known output lengths; cases: with the trace recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Strict,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.layers import Origin
from paged_core.settings.sources import entries
from paged_plugins.decisions.trace import trace_problem
from paged_plugins.files import PartError, mistakes, read_document
from paged_plugins.workloads.amount import SpecModel
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.request import WorkloadRequest, linked
from paged_plugins.workloads.spec import WorkloadSpec
from paged_plugins.workloads.traces.request_lines import Seconds, WrittenRequest, prompt_ranges

FIRST_OWN_ID = 10**9
"""Token ids from here on are those of prompts given by their length, and generated ones."""
IDS_PER_REQUEST = FIRST_OWN_ID
MAX_TOKENS = 100_000_000
"""Prompts and outputs of a scenario together."""
MAX_READS = 10**11
"""Tokens that all steps read back together, at most: for each output token, its whole sequence."""
MAX_DRAWN = 200_000
"""Requests that a workload of a scenario draws."""
MAX_FILE_SIZE = 2**28
"""Bytes of a scenario or a recorded case."""
_FIRST_PREFIX_ID = 2**60
_FIRST_DRAWN_ID = 2**61
_SUFFIXES = (".json", ".yaml", ".yml")
_MAX_PREFIXES = 10_000
_DRAWN_STEPS = 1_000_000
"""The default of ``max_steps`` of a scenario with a workload."""
_MAX_STEPS = 10**12

Step = Annotated[int, Strict(), Field(ge=0, lt=_MAX_STEPS)]
Count = Annotated[int, Strict(), Field(gt=0, le=MAX_TOKENS)]


def _named_workload(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in names():
        raise ValueError(
            f"no workload is called {value!r:.80}{did_you_mean(value, names())}, or give a mapping "
            "with the keys of a workload"
        )
    return workload_spec(value)


def _without_files(workload: WorkloadSpec) -> WorkloadSpec:
    """Refuse a workload that reads files: the scenario may be a stranger's."""
    for trace in workload.traces():
        raise ValueError(
            f"it reads the file {str(trace.file)!r:.80}, and a scenario reads no other files; "
            "write `requests`, or give the file to `paged-core simulate`"
        )
    return workload


Workload = Annotated[WorkloadSpec, BeforeValidator(_named_workload), AfterValidator(_without_files)]


class ScenarioRequest(WrittenRequest):
    """One request of a scenario."""

    output: Count
    n: Count = 1
    step: Step = 0
    after: Seconds = 0.0
    prefix: StrictStr | None = None

    @model_validator(mode="after")
    def _can_be_served(self) -> ScenarioRequest:
        given = [
            key
            for key in ("step", "at", "follows")
            if key in self.model_fields_set and (key == "step" or getattr(self, key) is not None)
        ]
        if len(given) > 1:
            raise ValueError(f"`{given[0]}` and `{given[1]}` exclude each other; give one of them")
        if "after" in self.model_fields_set and self.follows is None:
            raise ValueError("`after` is for a request that `follows` another; give `at`")
        if self.prefix is not None and self.follows is not None:
            raise ValueError(
                "`prefix` and `follows` exclude each other: it begins with the other's prompt"
            )
        prompt_ranges(self.prompt, FIRST_OWN_ID)
        return self

    def asked(self, number: int, prefixes: Mapping[str, tuple[range, ...]]) -> WorkloadRequest:
        """Return what it asks, as the ``number``-th request of a replay."""
        own = prompt_ranges(self.prompt, FIRST_OWN_ID)
        if isinstance(self.prompt, int):
            first = (number + 1) * IDS_PER_REQUEST  # no other request has these
            own = [range(first, first + self.prompt)]
        return self.written(
            *prefixes.get(self.prefix or "", ()),
            *own,
            at=self.after if self.follows is not None else self.at or 0.0,
            deadline=None if self.follows is None else self.deadline,
        )


class ScenarioAbort(SpecModel):
    """A request that is aborted just before a step is scheduled, or while its result is awaited."""

    id: StrictStr
    step: Step
    planned: StrictBool = False
    """True: once the step is planned, before its tokens are applied."""


class Scenario(SpecModel):
    """Settings and requests. ``settings`` are the engine's own, by keyword."""

    name: StrictStr
    about: StrictStr = ""
    settings: dict[StrictStr, Any]
    prefixes: dict[StrictStr, StrictInt | StrictStr] = Field(default={}, max_length=_MAX_PREFIXES)
    requests: tuple[ScenarioRequest, ...] = ()
    workload: Workload | None = None
    seed: Annotated[int, Strict(), Field(ge=0, lt=2**63)] = 0
    aborts: tuple[ScenarioAbort, ...] = ()
    seconds_per_step: Annotated[Seconds, Field(gt=0)] = 1.0
    max_steps: Annotated[Step, Field(gt=0)] = 200

    @model_validator(mode="before")
    @classmethod
    def _more_steps(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("workload") is not None:
            return {"max_steps": _DRAWN_STEPS, **values}
        return values

    @cached_property
    def written(self) -> dict[str, ScenarioRequest]:
        """The requests that are written in it, by id."""
        return {request.id: request for request in self.requests}

    @cached_property
    def asked(self) -> tuple[WorkloadRequest, ...]:
        """The requests that follow no other, those of the workload after the written ones.

        Those written for a step have no time yet, and the deadlines of written ones, which count
        from the start, are not in them.
        """
        prefixes = {}
        for number, (name, prompt) in enumerate(self.prefixes.items()):
            ranges = prompt_ranges(prompt, FIRST_OWN_ID)
            if isinstance(prompt, int):
                first = _FIRST_PREFIX_ID + number * IDS_PER_REQUEST
                ranges = [range(first, first + prompt)]
            prefixes[name] = tuple(ranges)
        own = linked(
            (each.asked(number, prefixes), each.follows)
            for number, each in enumerate(self.requests)
        )
        return (*own, *self._drawn())

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each request by its id, which breaks ties: first the written ones."""
        drawn = (request.id for first in self.asked for request in first.family())
        return {name: number for number, name in enumerate(dict.fromkeys((*self.written, *drawn)))}

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if not self.requests and self.workload is None and "requests" not in self.model_fields_set:
            raise ValueError("give `requests`, or a `workload` that draws them")
        if "seed" in self.model_fields_set and self.workload is None:
            raise ValueError("`seed` is of the `workload`, and there is none; leave it out")
        for prompt in self.prefixes.values():
            prompt_ranges(prompt, FIRST_OWN_ID)
        self._check_requests()
        self._check_aborts()
        if "num_blocks" not in self.settings:
            raise ValueError("give settings.num_blocks: without a model it cannot be measured")
        if "observers" in self.settings:
            raise PartError(
                "leave settings.observers out, which can write files; give --observers instead",
                *("settings", "observers"),
            )
        num_tokens = sum(
            length + each.n * each.output
            for first in self.asked
            for each, length in first.whole_prompts()
        )
        if num_tokens > MAX_TOKENS:
            raise ValueError(
                f"its prompts and outputs have {num_tokens:,} tokens together, and a replay takes "
                f"{MAX_TOKENS:,} at most; shorten them or split it"
            )
        return self

    def _check_requests(self) -> None:
        """Check that requests name prefixes that there are, and requests above them."""
        known: set[str] = set()
        for number, request in enumerate(self.requests):
            if request.id in known:
                problem = f"two requests have the same id, {request.id!r:.80}"
                raise PartError(problem, "requests", number, "id")
            if request.prefix is not None and request.prefix not in self.prefixes:
                raise PartError(
                    f"{request.id!r:.80} begins with the prefix {request.prefix!r:.80}, which "
                    f"`prefixes` does not have{did_you_mean(request.prefix, self.prefixes)}",
                    *("requests", number, "prefix"),
                )
            if request.follows is not None and request.follows not in known:
                raise PartError(
                    f"{request.id!r:.80} follows {request.follows!r:.80}, which no request above "
                    f"it is called{_nearest(request.follows, known)}",
                    *("requests", number, "follows"),
                )
            known.add(request.id)

    def _check_aborts(self) -> None:
        for number, abort in enumerate(self.aborts):
            if abort.id not in self.numbers:
                near = _nearest(abort.id, self.numbers)
                problem = f"`aborts` names {abort.id!r:.80}, which no request is called{near}"
                raise PartError(problem, "aborts", number, "id")
            if abort.id in self.written and abort.step < self.written[abort.id].step:
                problem = f"`aborts` ends {abort.id!r:.80} before it has arrived"
                raise PartError(problem, "aborts", number, "step")

    def _drawn(self) -> Iterator[WorkloadRequest]:
        """Yield the requests of the workload, as long as a replay can take so many."""
        if self.workload is None:
            return
        count = num_tokens = 0
        for first in self.workload.build().draw(self.seed):
            for request, length in first.whole_prompts():
                count += 1
                num_tokens += length + request.n * request.output
                if num_tokens > MAX_TOKENS or count > MAX_DRAWN:
                    raise ValueError(
                        f"its workload draws more than {MAX_DRAWN:,} requests or {MAX_TOKENS:,} "
                        "tokens, and a replay takes no more; lower `requests` or the lengths"
                    )
                if request.id in self.written:
                    raise ValueError(f"two requests have the same id, {request.id!r:.80}")
            yield from linked(
                (replace(request, prompt=request.shifted(_FIRST_DRAWN_ID)), follows)
                for request, follows in first.links()
            )


def _nearest(word: str, ids: Iterable[str]) -> str:
    """Return the nearest id, to append to a message, if one is near: there are too many to list."""
    near = get_close_matches(word, ids, n=1)
    return did_you_mean(word, near) if near else ""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario and, if it was recorded, its expected trace."""

    scenario: Scenario
    trace: list[dict[str, Any]] | None
    path: Path
    lines: Mapping[tuple[str, ...], int | None]
    """Lines of its settings and their options in the file."""


def read_case(path: Path) -> Case:
    """Read a scenario, bare or with its trace, from YAML or JSON.

    Raises:
        SettingsError: the file is missing, broken, or not a scenario; the message says where.
    """
    document = read_document(path, MAX_FILE_SIZE)
    content = document.content
    above: tuple[str, ...] = ()
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping with the keys of a scenario")
    trace = None
    if "scenario" in content:
        trace = content.get("trace")
        content, above = content["scenario"], ("scenario",)
        if trace is not None and (problem := trace_problem(trace)):
            raise SettingsError(f"{path}: {problem}")
    try:
        scenario = Scenario.model_validate(content)
    except ValidationError as error:
        problems = mistakes(error, Scenario, content, document, above)
        raise SettingsError(f"{path} is not a scenario: {problems}") from None
    origin = Origin("yaml", str(path))
    found = entries(scenario.settings, origin, lambda key: document.line(*above, "settings", *key))
    lines = {each.path: each.origin.line for each in found}
    return Case(scenario, trace, path, lines)


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
