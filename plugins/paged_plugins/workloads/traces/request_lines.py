"""Requests as JSONL: everything that a workload can say, a line per request.

A request that follows another stands below it, before the next one that follows none: a file can be
read as it is replayed, however long it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Strict, StrictInt, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.amount import SpecModel
from paged_plugins.workloads.request import (
    FIRST_OWN_ID,
    MOST_FAMILY,
    ContentIds,
    Part,
    WorkloadRequest,
    linked,
)
from paged_plugins.workloads.traces.files import (
    MAX_TOKENS,
    ArrivalOrder,
    TokenCount,
    TraceError,
    checked,
    json_lines,
)

_MAX_SECONDS = 1e12
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})", re.ASCII)


def _bounded(seconds: float) -> float:
    if seconds > _MAX_SECONDS:
        problem = f"give seconds, {_MAX_SECONDS:g} at most, not {seconds:.13g}; milliseconds?"
        raise PydanticCustomError("seconds", problem)
    return seconds


Seconds = Annotated[float, Strict(), Field(ge=0), AfterValidator(_bounded)]
Count = Annotated[int, Strict(), Field(gt=0, le=MAX_TOKENS)]


class WrittenRequest(SpecModel):
    """Common fields of a line of a file and a request of a scenario."""

    id: StrictStr
    at: Seconds | None = None
    """Arrival of one that follows none; default 0."""
    follows: StrictStr | None = None
    prompt: StrictInt | StrictStr
    """A length, or ranges of content ids: ``"0:256 300:310"``."""
    output: Count
    n: Count = 1
    priority: Annotated[int, Strict(), Field(gt=-(2**63), lt=2**63)] = 0
    tenant: StrictStr = ""
    deadline: Seconds | None = None
    cache_salt: StrictStr | None = None

    def written(self, *parts: range, **changes: Any) -> WorkloadRequest:
        """Return it without those that follow it, with a prompt of these parts."""
        same = ("id", "output", "n", "priority", "tenant", "deadline", "cache_salt")
        values = {name: getattr(self, name) for name in same}
        return WorkloadRequest(prompt=parts, **{**values, **changes})


def prompt_ranges(prompt: int | str, limit: int) -> list[range]:
    """Return the content ids of a prompt; those of one given by its length count from 0.

    Args:
        limit: all ids are below it.

    Raises:
        PydanticCustomError: it is neither a length nor ranges, is empty, or too long.
    """

    def problem(what: str) -> PydanticCustomError:
        return PydanticCustomError("prompt", f"the prompt {prompt!r:.80} {what}")

    ranges = [range(prompt)] if isinstance(prompt, int) else []
    for part in prompt.split() if isinstance(prompt, str) else ():
        found = _RANGE.fullmatch(part)
        if found is None:
            raise problem("is neither a length nor ranges such as '0:256 300:310'")
        ranges.append(range(int(found[1]), int(found[2])))
    if not ranges or not all(ranges):
        raise problem("has no tokens, or an empty range")
    if sum(each.stop - each.start for each in ranges) > MAX_TOKENS:
        raise problem(f"has more than {MAX_TOKENS:,} tokens")
    if max(each.stop for each in ranges) > limit:
        raise problem(f"has an id of {limit:,} or more")
    return ranges


class RequestLine(WrittenRequest):
    """One line."""

    id: Annotated[StrictStr, Field(min_length=1)]
    after: Seconds | None = None
    """Arrival of one that follows another: seconds from its end; default 0."""
    session: StrictStr = ""

    @model_validator(mode="after")
    def _possible(self) -> RequestLine:
        if self.follows is None and self.after is not None:
            raise PydanticCustomError("after", "`after` is for requests with `follows`; give `at`")
        if self.follows is not None and self.at is not None:
            raise PydanticCustomError("at", "it follows another; give `after` instead of `at`")
        prompt_ranges(self.prompt, FIRST_OWN_ID)
        return self

    def request(self, own: ContentIds) -> WorkloadRequest:
        """Return it without those that follow it; ``own``: ids for a prompt given by its length."""
        ranges = prompt_ranges(self.prompt, FIRST_OWN_ID)
        if isinstance(self.prompt, int):
            ranges = [own.take(self.prompt)]
        at = (self.at if self.follows is None else self.after) or 0.0
        return self.written(*ranges, at=at, session=self.session)


def read_requests(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of a file that follow no other, each with its followers.

    Raises:
        TraceError: a line is broken, out of order, or repeats an id.
    """
    own = ContentIds(FIRST_OWN_ID)
    family: dict[str, tuple[WorkloadRequest, str | None]] = {}
    """By id, in the order of the file: a request, and the one that it follows."""
    ids: set[str] = set()
    order = ArrivalOrder(path, "at")
    for number, values in json_lines(path):
        line = checked(path, number, values, RequestLine)
        if line.id in ids:
            raise TraceError(path, number, f"a line above has the id {line.id!r:.80}, too")
        ids.add(line.id)
        request = line.request(own)
        if line.follows is None:
            order.checked(number, request.at)
            if family:
                yield from linked(family.values())
            family = {}
        elif line.follows not in family:
            raise TraceError(
                path,
                number,
                f"it follows {line.follows!r:.80}, which is not among the lines since the last "
                "request that follows none; move it there",
            )
        elif len(family) == MOST_FAMILY:
            raise TraceError(path, number, f"more than {MOST_FAMILY:,} requests follow each other")
        family[line.id] = (request, line.follows)
    if family:
        yield from linked(family.values())


def request_lines(requests: Iterable[WorkloadRequest]) -> Iterator[str]:
    """Yield the lines of a file that reads back as equal requests."""
    for first in requests:
        for request, follows in first.links():
            yield json.dumps(_values(request, follows)) + "\n"


def _values(request: WorkloadRequest, follows: str | None) -> dict[str, Any]:
    timing = {"at": request.at} if follows is None else {"follows": follows, "after": request.at}
    optional = {
        "n": request.n if request.n != 1 else None,
        "priority": request.priority or None,
        "tenant": request.tenant or None,
        "session": request.session or None,
        "deadline": request.deadline,
        "cache_salt": request.cache_salt,
    }
    return {
        "id": request.id,
        **timing,
        "prompt": " ".join(f"{run.start}:{run.stop}" for run in _runs(request.prompt)),
        "output": request.output,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _runs(parts: Iterable[Part]) -> Iterator[range]:
    for part in parts:
        yield from [part] if isinstance(part, range) else (range(each, each + 1) for each in part)
