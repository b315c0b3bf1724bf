"""Recordings that ``paged-core-vllm`` makes inside vLLM, read as a scenario and its trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from paged_core.settings.documents import parse_json
from paged_plugins.decisions.trace import line_problem
from paged_plugins.workloads.request import MOST_FAMILY
from paged_plugins.workloads.traces.files import TraceError, checked, text_lines

MAX_LINE = 2**26
"""Bytes of a line: the token ids of a long prompt."""

Number = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Id = Annotated[str, Field(min_length=1)]


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class Header(_Line):
    """The first line of each file of a recording."""

    recording: Annotated[int, Field(ge=1, le=1)]
    settings: dict[str, Any]
    block_tokens: Annotated[int, Field(gt=0)]
    is_async: bool = Field(False, alias="async")
    part: Number = 0


class Added(_Line):
    """A request that arrived."""

    add: Id
    step: Number
    at: Seconds
    length: Annotated[int, Field(gt=0)]
    output: Annotated[int, Field(gt=0)]
    """Tokens that it may generate."""
    blocks: list[str] = []
    """Keys of the content of its full blocks."""
    follows: str | None = None
    first: Number = Field(0, alias="from")
    """With ``follows``: tokens of prompt and answer of that one."""
    rest: str = ""
    """With ``follows``: a key of the tokens behind those."""
    priority: int = 0
    tenant: str = ""
    deadline: Seconds | None = None


class Ended(_Line):
    """A request that finished or was aborted."""

    end: Id
    step: Number
    at: Seconds
    output: Number
    aborted: bool = False
    planned: bool = False


class Step(_Line):
    """A step whose result was applied."""

    trace: dict[str, Any]


_KINDS: dict[str, type[_Line]] = {
    "add": Added,
    "end": Ended,
    "trace": Step,
    "recording": Header,
}


@dataclass
class Recording:
    """Requests and decisions of one scheduler."""

    name: str
    header: Header
    requests: dict[str, Added] = field(default_factory=dict)
    ends: dict[str, Ended] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    unknown: int = 0
    """Requests that arrived before what is kept of the recording begins."""

    @property
    def is_whole(self) -> bool:
        """True if it begins with the start of the scheduler, so that its trace can be replayed."""
        return self.header.part == 0

    # ------------------------------------------------------------------ prompts

    @cached_property
    def prompts(self) -> dict[str, str]:
        """The prompt of each request as ranges of ids, behind that of the one it follows."""
        size, known, next_id = self.header.block_tokens, dict[str, int](), 0
        prompts = {}
        for name, added in self.requests.items():
            parts = [(key, size) for key in added.blocks]
            rest = added.length - (size * len(added.blocks) if added.follows is None else 0)
            if added.follows is not None:
                parts = [(f"{added.follows}/{added.rest}", added.length - added.first)]
            elif rest:
                parts.append((f"{name}/", rest))
            ranges: list[list[int]] = []
            for key, count in parts:
                start = known.setdefault(key, next_id)
                next_id = max(next_id, start + count)
                if ranges and ranges[-1][1] == start:
                    ranges[-1][1] = start + count
                else:
                    ranges.append([start, start + count])
            prompts[name] = " ".join(f"{start}:{end}" for start, end in ranges)
        return prompts

    def follows(self, added: Added) -> Ended | None:
        """Return the end of the request whose prompt and answer a request continues."""
        return None if added.follows is None else self.ends.get(added.follows)

    # ------------------------------------------------------------------ by step

    def scenario(self) -> dict[str, Any]:
        """Return a scenario in which requests come in the steps in which they came.

        It ends with the trace: what went on is aborted, what came later is left out.
        """
        requests, aborts = [], []
        steps = [each.step for each in self.requests.values()]
        steps += [each.step for each in self.ends.values()]
        last = 1 + (self.trace[-1]["step"] if self.trace else max(steps, default=0))
        for name, added in self.requests.items():
            end, before = self.ends.get(name), self.follows(added)
            if added.step >= last:
                continue
            is_done = end is not None and not end.aborted
            output = end.output if end is not None and is_done else added.output
            values: dict[str, Any] = {
                "id": name,
                "prompt": self.prompts[name],
                "output": max(1, output),
            }
            if before is not None:
                values |= {"follows": added.follows, "after": float(added.step - before.step)}
            else:
                values["step"] = added.step
            if added.deadline is not None:
                asked = added.deadline if before is None else added.deadline - added.at
                values["deadline"] = max(0.0, asked)
            requests.append(values | _named(added))
            if end is None or end.step > last:
                aborts.append({"id": name, "step": last})
            elif end.aborted:
                planned = {"planned": True} if end.planned else {}
                aborts.append({"id": name, "step": end.step} | planned)
        return {
            "name": self.name,
            "settings": self.header.settings,
            "requests": requests,
            "aborts": aborts,
            "max_steps": last + 1,
        }

    # ------------------------------------------------------------------ by time

    def request_lines(self) -> Iterator[dict[str, Any]]:
        """Yield lines of a workload: requests at the seconds at which they came.

        Each comes with those that follow it; one that was aborted ends where it had come to.
        """
        followers: dict[str, list[str]] = {}
        first = []
        for name, added in self.requests.items():
            if added.follows is not None and self.follows(added) is not None:
                followers.setdefault(added.follows, []).append(name)
            else:
                first.append(name)
        for root in sorted(first, key=lambda name: self.requests[name].at):
            family = [root]
            for each in family:  # it grows meanwhile
                family += followers.get(each, ())
            for name in family[:MOST_FAMILY]:
                yield self._timed(name)

    def _timed(self, name: str) -> dict[str, Any]:
        added, end = self.requests[name], self.ends.get(name)
        before = self.follows(added)
        output = added.output if end is None else end.output
        values = {"id": name, "prompt": self.prompts[name], "output": max(1, output)}
        if before is None:
            values["at"] = max(0.0, added.at)
        else:
            values |= {"follows": added.follows, "after": max(0.0, round(added.at - before.at, 6))}
        if added.deadline is not None:
            values["deadline"] = max(0.0, round(added.deadline - added.at, 6))
        return values | _named(added)


def _named(added: Added) -> dict[str, Any]:
    found: dict[str, Any] = {"priority": added.priority} if added.priority else {}
    return found | ({"tenant": added.tenant} if added.tenant else {})


def parts_of(path: Path) -> list[Path]:
    """Return the files of a recording, oldest first: ``PATH.2``, ``PATH.1``, ``PATH``."""
    kept: list[Path] = []
    while (older := path.with_name(f"{path.name}.{len(kept) + 1}")).is_file():
        kept.append(older)
    return [*reversed(kept), path]


def read_recording(path: Path) -> Recording:
    """Read a recording, with the files of it that were kept.

    A line that the end of the process has cut is left out.

    Raises:
        TraceError: a line is broken; the message names the file and the line.
    """
    made: Recording | None = None
    for part in _newest_run(parts_of(path)):
        for number, line in _lines(part):
            if isinstance(line, Header):
                made = made or Recording(path.name.partition(".")[0] or "traffic", line)
            elif made is None:
                raise TraceError(part, number, "a recording begins with a line with `recording`")
            else:
                _take(made, part, number, line)
    if made is None:
        is_cut = any(text_lines(path, MAX_LINE))
        raise TraceError(path, None, "its only line is cut short" if is_cut else "it is empty")
    return made


def _newest_run(parts: list[Path]) -> list[Path]:
    """Return the files since the last start of a scheduler."""
    for place in range(len(parts) - 1, 0, -1):
        first = next(_lines(parts[place]), None)
        if first is not None and isinstance(first[1], Header) and first[1].part == 0:
            return parts[place:]
    return parts


def _lines(path: Path) -> Iterator[tuple[int, _Line]]:
    for number, text, is_last in _with_last(text_lines(path, MAX_LINE)):
        try:
            values = parse_json(text, any_text=True)
        except ValueError as error:
            if is_last:
                return
            raise TraceError(path, number, f"it is not JSON: {error}") from None
        kinds = [kind for key, kind in _KINDS.items() if isinstance(values, dict) and key in values]
        if not kinds:
            raise TraceError(path, number, f"it has none of the keys {', '.join(_KINDS)}")
        yield number, checked(path, number, values, kinds[0])


def _with_last(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, bool]]:
    before: tuple[int, str] | None = None
    for line in lines:
        if before is not None:
            yield *before, False
        before = line
    if before is not None:
        yield *before, True


def _take(made: Recording, path: Path, number: int, line: _Line) -> None:
    if isinstance(line, Added):
        if line.add in made.requests:
            raise TraceError(path, number, f"the request {line.add!r:.80} is added twice")
        if line.follows is not None and line.first >= line.length:
            raise TraceError(path, number, "`from` is beyond the prompt")
        made.requests[line.add] = line
    elif isinstance(line, Ended):
        made.unknown += line.end not in made.requests
        made.ends[line.end] = line
    elif isinstance(line, Step):
        if problem := line_problem(line.trace):
            raise TraceError(path, number, f"it is no step of a trace: {problem}")
        made.trace.append(line.trace)
