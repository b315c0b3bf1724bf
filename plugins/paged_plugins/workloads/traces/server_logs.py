"""Logs of servers: what vLLM says of requests, and the access log of this project's server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paged_core.settings.documents import parse_json
from paged_plugins.workloads.request import FIRST_OWN_ID, ContentIds, WorkloadRequest
from paged_plugins.workloads.traces.files import (
    MAX_TOKENS,
    ArrivalOrder,
    TokenCount,
    TraceError,
    checked,
    text_lines,
)

_LINE = re.compile(r"(?:INFO|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d) \[[^]]*\] (.*)")
_ASKED = re.compile(
    r"Request (\S+) details: prompt: .*, prompt_token_ids: \[([\d, ]*)\], prompt_embeds shape: "
)
_ANSWERED = re.compile(
    r"Generated response (\S+)(?: \(streaming delta\))? details: output_token_ids: \[([\d, ]*)\]"
)
_ACCESS = re.compile(r'"[A-Z]+ \S+ HTTP/[\d.]+" \d{3}|\] answered +method=')
_VLLM = "vLLM with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG"
MAX_LOG_LINE = 2**26
"""Bytes: the token ids of a long prompt, twice."""


def log_format(head: str) -> str | None:
    """Return the format of a log, by how it begins; ``None``: it is no such log.

    Raises:
        ValueError: it has no lengths; the message says how to have them written.
    """
    if _LINE.search(head):
        return "vllm_log"
    if _ACCESS.search(head):
        raise ValueError(
            f"an access log without lengths; start {_VLLM}, or paged-core serve with "
            "PAGED_CORE_LOG_FORMAT=json"
        )
    return None


def read_vllm_log(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of vLLM's log, with their tokens, when vLLM received them.

    Lengths are in lines of level DEBUG. Times are in seconds, without the year. Requests whose
    answer is not logged are left out: in vLLM 0.32 those of ``/v1/completions``.

    Raises:
        TraceError: no request has both lengths, or a year ends between two.
    """
    answers = Counter[str]()
    for _number, _time, message in _vllm_lines(path):
        if found := _ANSWERED.match(message):
            answers[found[1]] += len(found[2].split())
    order, start = ArrivalOrder(path, "time"), None
    for number, time, message in _vllm_lines(path):
        found = _ASKED.match(message)
        if found and found[2] and answers[found[1]]:
            start = start or time
            at = order.checked(number, (time - start).total_seconds())
            name, ids = found[1], tuple(map(int, found[2].split(",")))
            yield WorkloadRequest(
                id=name, at=at, prompt=(ids,), output=answers.pop(name), session=name
            )
    if start is None:
        raise TraceError(
            path,
            None,
            f"no request in it has both lengths; start {_VLLM} (vLLM 0.32 logs no answers of "
            "/v1/completions)",
        )


def _vllm_lines(path: Path) -> Iterator[tuple[int, datetime, str]]:
    for number, text in text_lines(path, MAX_LOG_LINE):
        if found := _LINE.search(text):
            yield number, datetime.strptime(f"2000-{found[1]}", "%Y-%m-%d %H:%M:%S"), found[2]


class _Answered(BaseModel):
    model_config = ConfigDict(extra="ignore")

    timestamp: datetime
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    prompt_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    completion_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]


def read_access_log(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of this project's server, of its log in JSON.

    Each arrived so long before its line as it took. Lines without tokens are left out.

    Raises:
        TraceError: a line of a request is broken.
    """
    found: list[tuple[float, int, int]] = []
    for number, text in text_lines(path):
        try:
            values = parse_json(text, any_text=True)
        except ValueError:
            continue  # what other programs, or Python, wrote
        if isinstance(values, dict) and "completion_tokens" in values:
            line = checked(path, number, values, _Answered)
            if line.prompt_tokens and line.completion_tokens:
                at = line.timestamp.timestamp() - line.seconds
                found.append((at, line.prompt_tokens, line.completion_tokens))
    found.sort()
    own = ContentIds(FIRST_OWN_ID)
    for index, (at, num_prompt, num_output) in enumerate(found):
        yield WorkloadRequest(
            id=str(index),
            at=round(at - found[0][0], 6),
            prompt=(own.take(num_prompt),),
            output=num_output,
            session=str(index),
        )
