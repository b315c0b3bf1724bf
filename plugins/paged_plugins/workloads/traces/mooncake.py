"""The traces of Mooncake: which blocks of 512 tokens prompts share is in them.

JSONL: ``{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}``.
Times are in milliseconds; each id is that of a block of 512 tokens, the last one may be shorter
(Qin et al., "Mooncake", FAST 2025; github.com/kvcache-ai/Mooncake).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paged_plugins.workloads.content import FIRST_OWN_ID, ContentIds
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.traces.request_lines import MAX_TOKENS
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace_lines import TraceError, json_lines

BLOCK = 512
"""Tokens of a block."""


class _Line(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    timestamp: Annotated[float, Field(ge=0, le=1e15)]
    input_length: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    output_length: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    hash_ids: list[Annotated[int, Field(ge=0, lt=FIRST_OWN_ID // BLOCK)]] = []


def read_mooncake(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests; lines that read or generate no token are left out.

    Raises:
        TraceError: a line is broken, or its ids are not as many as its blocks.
    """
    own = ContentIds(FIRST_OWN_ID)
    start: float | None = None
    at = 0.0
    for index, (number, values) in enumerate(json_lines(path)):
        line = _checked(path, number, values)
        start = line.timestamp if start is None else start
        at = max(at, (line.timestamp - start) / 1000)
        if line.input_length and line.output_length:
            name = str(index)
            yield WorkloadRequest(
                id=name,
                at=at,
                prompt=_prompt(line, own),
                output=line.output_length,
                session=name,
            )


def _prompt(line: _Line, own: ContentIds) -> tuple[range, ...]:
    """Return the content: an id of a block stands for 512 content ids."""
    ids = line.hash_ids[: -(-line.input_length // BLOCK)]
    parts = [range(each * BLOCK, (each + 1) * BLOCK) for each in ids]
    rest = line.input_length - BLOCK * len(parts)
    if rest < 0:
        parts[-1] = parts[-1][:rest]
    elif rest:
        parts.append(own.take(rest))
    return tuple(parts)


def _checked(path: Path, number: int, values: object) -> _Line:
    try:
        return _Line.model_validate(values)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        where = ".".join(map(str, item["loc"]))
        raise TraceError(path, number, f"{where:.80}: {item['msg']:.200}") from None
