"""The formats of public traces: Azure, BurstGPT, Mooncake, ShareGPT, vllm bench and its results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from paged_plugins.workloads.request import FIRST_OWN_ID, MOST_FAMILY, ContentIds, WorkloadRequest
from paged_plugins.workloads.traces.files import (
    MAX_TOKENS,
    ArrivalOrder,
    CsvRow,
    TokenCount,
    TraceError,
    array_items,
    checked,
    csv_rows,
    json_lines,
    json_objects,
)

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_MOONCAKE_BLOCK = 512
"""Tokens of a block."""
_SHAREGPT_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard")
"""Who answers; all others ask."""
MAX_RESULT = 2**28
"""Bytes of a result of ``vllm bench serve``, which is one line."""
_VLLM_BENCH_OUTPUT = 256
"""Tokens of an answer whose length is not given: the default of ``--custom-output-len``."""


def read_azure(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of Azure's traces of LLM inference, of 2023 and 2024.

    CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``, times as ``2023-11-16 18:17:03.9799600`` or
    ``2024-05-12 00:00:00.001163+00:00`` (Patel et al., "Splitwise", ISCA 2024; Stojkovic et al.,
    "DynamoLLM", HPCA 2025; github.com/Azure/AzurePublicDataset). Rows that read or generate no
    token are left out.

    Raises:
        TraceError: a row is broken, or out of order.
    """
    own = ContentIds(FIRST_OWN_ID)
    order = ArrivalOrder(path, _AZURE_COLUMNS[0])
    start: datetime | None = None
    for number, row in enumerate(csv_rows(path, _AZURE_COLUMNS)):
        time = _azure_time(row)
        start = start or time
        at = order.checked(row.line, (time - start).total_seconds())
        num_prompt, num_output = row.tokens(1), row.tokens(2)
        if num_prompt and num_output:
            name = str(number)
            prompt = (own.take(num_prompt),)
            yield WorkloadRequest(id=name, at=at, prompt=prompt, output=num_output, session=name)


def _azure_time(row: CsvRow) -> datetime:
    try:
        time = datetime.fromisoformat(row.fields[0])
    except ValueError:
        raise row.error(
            f"{row.fields[0]!r:.40} is no time such as 2023-11-16 18:17:03.97"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def read_burstgpt(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of a trace of BurstGPT.

    CSV with the columns ``Timestamp`` (in seconds), ``Session ID``, ``Elapsed time``, ``Model``,
    ``Request tokens``, ``Response tokens``, ``Total tokens`` and ``Log Type``; releases before 2.0
    lack the session and the elapsed time (Wang et al., "BurstGPT", KDD 2025;
    github.com/HPMLL/BurstGPT). Rows that read or generate no token, which are failures, are left
    out. Each row is a request of its own, at its own time: which of them continue each other's text
    is not recorded, only that they are of one session.

    Raises:
        TraceError: a row is broken, or out of order.
    """
    own = ContentIds(FIRST_OWN_ID)
    order = ArrivalOrder(path, _BURSTGPT_COLUMNS[0])
    start: float | None = None
    for number, row in enumerate(csv_rows(path, _BURSTGPT_COLUMNS, optional=("Session ID",))):
        time = _burstgpt_seconds(row)
        start = time if start is None else start
        at = order.checked(row.line, time - start)
        num_prompt, num_output = row.tokens(1), row.tokens(2)
        if num_prompt and num_output:
            yield WorkloadRequest(
                id=str(number),
                at=at,
                prompt=(own.take(num_prompt),),
                output=num_output,
                session=row.fields[3] or str(number),
            )


def _burstgpt_seconds(row: CsvRow) -> float:
    try:
        time = float(row.fields[0])
    except ValueError:
        time = float("nan")
    if not isfinite(time) or abs(time) > 1e12:
        raise row.error(f"{row.fields[0]!r:.40} is no number of seconds")
    return time


class _MooncakeLine(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    timestamp: Annotated[float, Field(ge=0, le=1e15)]
    input_length: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    output_length: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    hash_ids: list[Annotated[int, Field(ge=0, lt=FIRST_OWN_ID // _MOONCAKE_BLOCK)]] = []


def read_mooncake(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of a trace of Mooncake, which names the blocks that prompts share.

    JSONL: ``{"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}``.
    Times are in milliseconds; each id is that of a block of 512 tokens, the last one may be shorter
    (Qin et al., "Mooncake", FAST 2025; github.com/kvcache-ai/Mooncake). Lines that read or generate
    no token are left out.

    Raises:
        TraceError: a line is broken, out of order, or its ids are not as many as its blocks.
    """
    own = ContentIds(FIRST_OWN_ID)
    order = ArrivalOrder(path, "timestamp")
    start: float | None = None
    for index, (number, values) in enumerate(json_lines(path)):
        line = checked(path, number, values, _MooncakeLine)
        start = line.timestamp if start is None else start
        num_blocks = -(-line.input_length // _MOONCAKE_BLOCK)
        if line.hash_ids and len(line.hash_ids) != num_blocks:
            raise TraceError(
                path,
                number,
                f"input_length {line.input_length} has {num_blocks} blocks of {_MOONCAKE_BLOCK} "
                f"tokens, and `hash_ids` names {len(line.hash_ids)}; give one id for each, or none",
            )
        at = order.checked(number, (line.timestamp - start) / 1000)
        if line.input_length and line.output_length:
            name = str(index)
            yield WorkloadRequest(
                id=name,
                at=at,
                prompt=_mooncake_prompt(line, own),
                output=line.output_length,
                session=name,
            )


def _mooncake_prompt(line: _MooncakeLine, own: ContentIds) -> tuple[range, ...]:
    """Return the content: an id of a block stands for 512 content ids."""
    parts = [range(each * _MOONCAKE_BLOCK, (each + 1) * _MOONCAKE_BLOCK) for each in line.hash_ids]
    rest = line.input_length - _MOONCAKE_BLOCK * len(parts)
    if rest < 0:
        parts[-1] = parts[-1][:rest]
    elif rest:
        parts.append(own.take(rest))
    return tuple(parts)


def read_sharegpt(path: Path, count_tokens: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the first requests of ShareGPT's conversations, all at once; further turns follow them.

    ``[{"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt",
    "value": "..."}, ...]}, ...]``. The array is read one conversation at a time.
    What stands before an answer is its prompt. Conversations without an answer are left out.

    Raises:
        TraceError: the file is no such array.
    """
    own = ContentIds(FIRST_OWN_ID)
    for number, item in enumerate(array_items(path)):
        session = str(number)
        turns = [
            (count_tokens(prompt), count_tokens(answer))
            for prompt, answer in _sharegpt_turns(path, number, item)
        ]
        served = [(asked, answered) for asked, answered in turns if asked and answered]
        requests = [
            WorkloadRequest(
                id=f"{session}.{place}" if place else session,
                prompt=(own.take(num_prompt),),
                output=num_output,
                session=session,
            )
            for place, (num_prompt, num_output) in enumerate(served[:MOST_FAMILY])
        ]
        chain: tuple[WorkloadRequest, ...] = ()
        for request in reversed(requests):
            chain = (replace(request, followers=chain),)
        yield from chain


def _sharegpt_turns(path: Path, number: int, item: Any) -> Iterator[tuple[str, str]]:
    """Yield what is asked and what is answered."""
    messages = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(messages, list):
        raise TraceError(
            path,
            None,
            f"entry {number} has no list `conversations`, as those of ShareGPT do, whose files are "
            "JSON arrays; requests stand in a line each, without an array around them",
        )
    asked: list[str] = []
    for message in messages:
        speaker = message.get("from") if isinstance(message, dict) else None
        text = message.get("value") if isinstance(message, dict) else None
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise TraceError(path, None, f"entry {number} has a message without `from` or `value`")
        if speaker in _SHAREGPT_ANSWERS and asked:
            yield "\n".join(asked), text
            asked = []
        else:
            asked.append(text)


def read_vllm_bench(path: Path, count_tokens: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of ``vllm bench serve --dataset-name custom``, which arrive at once.

    JSONL: ``{"prompt": "What is the capital of India?", "output_tokens": 10}``; ``output_tokens``
    may be left out.
    A prompt is its length alone: two texts that begin alike share nothing.

    Raises:
        TraceError: a line is broken.
    """
    own = ContentIds(FIRST_OWN_ID)
    for index, (number, values) in enumerate(json_lines(path)):
        if "output_tokens" not in values and (near := get_close_matches("output_tokens", values)):
            raise TraceError(path, number, f"{near[0]}: no such key; did you mean 'output_tokens'?")
        prompt, output = values.get("prompt"), values.get("output_tokens", _VLLM_BENCH_OUTPUT)
        if not isinstance(prompt, str):
            raise TraceError(path, number, "`prompt` is no text")
        if type(output) is not int or not 0 <= output <= MAX_TOKENS:
            raise TraceError(path, number, f"`output_tokens` is no number up to {MAX_TOKENS:,}")
        if not prompt or not output:
            continue
        content = (own.take(max(1, count_tokens(prompt))),)
        name = str(index)
        yield WorkloadRequest(id=name, prompt=content, output=output, session=name)


def vllm_bench_note(path: Path) -> str | None:
    """Return how many lines leave the length of the answer out; ``None``: none does."""
    lines = ["output_tokens" in values for _, values in json_lines(path)]
    if all(lines):
        return None
    return (
        f"note: {lines.count(False):,} of {len(lines):,} lines of {path} have no `output_tokens`: "
        f"{_VLLM_BENCH_OUTPUT} are taken"
    )


class _VllmResult(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    start_times: list[Annotated[float, Field(ge=0, le=1e12)]]
    input_lens: list[Annotated[int, Field(ge=0, le=MAX_TOKENS)]]
    output_lens: list[Annotated[int, Field(ge=0, le=MAX_TOKENS)]]


def read_vllm_result(path: Path, _: TokenCount) -> Iterator[WorkloadRequest]:
    """Yield the requests of a result of ``vllm bench serve``, when they were sent.

    JSON, as ``--save-result --save-detailed`` write it: ``start_times`` in seconds, ``input_lens``
    and ``output_lens``, an entry for each request. Those that failed, and so generated nothing, are
    left out.

    Raises:
        TraceError: it lacks one of these lists, they differ in length, or other results follow.
    """
    own = ContentIds(FIRST_OWN_ID)
    lines = json_objects(path, MAX_RESULT)
    number, values = next(lines)
    if "start_times" not in values:
        raise TraceError(path, number, "it has no `start_times`; use --save-detailed")
    found = checked(path, number, values, _VllmResult)
    columns = found.start_times, found.input_lens, found.output_lens
    if len({len(each) for each in columns}) > 1:
        raise TraceError(path, number, "its lists of requests are not of one length")
    if next(lines, None) is not None:
        raise TraceError(path, number, "other results follow (--append-result); keep one")
    start = min(found.start_times, default=0.0)
    for index, (at, num_prompt, num_output) in enumerate(sorted(zip(*columns, strict=True))):
        if num_prompt and num_output:
            name = str(index)
            prompt = (own.take(num_prompt),)
            yield WorkloadRequest(
                id=name, at=at - start, prompt=prompt, output=num_output, session=name
            )
