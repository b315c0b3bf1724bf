"""The file of ``--prompts-file``: a prompt a line, or in JSONL a prompt with its parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from paged_core.cli.batch_format import BatchRequest
from paged_core.config.documents import parse_json
from paged_core.config.suggest import did_you_mean
from paged_core.errors import RequestError, SettingsError
from paged_core.sampling_params import SamplingParams
from paged_core.text.prompts import as_token_ids

MAX_BYTES = 1 << 28
"""A larger file is refused before it is read to its end; a device has none."""
_PROMPTS = ("prompt", "prompt_token_ids", "messages")
_PARAMETERS = {field.name for field in fields(SamplingParams)} - {"logits_processors"}
_OTHERS = {"priority", "cache_salt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt and how it is completed."""

    prompt: Any
    """Text, token ids, ``{"prompt": ...}``, ``{"prompt_token_ids": ...}`` or
    ``{"messages": ...}``."""
    sampling: SamplingParams
    fields: Mapping[str, Any]
    """Of the request: ``priority``, ``cache_salt``."""
    batch: BatchRequest | None = None
    """The line of a batch file that asks for it."""


def read_tasks(name: str, sampling: SamplingParams) -> list[Task]:
    """Return what a file asks for; ``-`` is standard input.

    Args:
        sampling: what a line does not say.

    Raises:
        SettingsError: the file cannot be read or is too large, or a line is wrong.
    """
    tasks = []
    for number, line in _lines(name):
        if not name.endswith(".jsonl"):
            tasks.append(Task(prompt=line, sampling=sampling, fields={}))
            continue
        try:
            tasks.append(_task(_decoded(line), sampling))
        except RequestError as error:
            raise SettingsError(f"{name}, line {number}: {error}") from None
    return tasks


def _lines(name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        if name == "-":
            content = sys.stdin.read(MAX_BYTES + 1) if sys.stdin is not None else ""
        else:
            with Path(name).open(encoding="utf-8", newline="") as file:
                content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(f"--prompts-file: cannot read {name}: {error}") from None
    if len(content) > MAX_BYTES:
        raise SettingsError(
            f"--prompts-file: {name} has more than {MAX_BYTES >> 20} Mi characters; split it"
        )
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _decoded(line: str) -> Any:
    try:
        return parse_json(line, any_text=True)
    except ValueError as error:
        raise RequestError(f"not JSON: {error}") from None


def _task(line: Any, sampling: SamplingParams) -> Task:
    if isinstance(line, (str, list)):
        return Task(prompt=line, sampling=sampling, fields={})
    if not isinstance(line, dict):
        raise RequestError("it is neither a text, nor a list of token ids, nor an object")
    if "custom_id" in line or "body" in line:
        batch = BatchRequest.of(line)
        return replace(_with_parameters(batch.values, sampling), batch=batch)
    return _with_parameters(line, sampling)


def _with_parameters(line: Mapping[str, Any], sampling: SamplingParams) -> Task:
    """Return the task of an object with a prompt or messages and, beside it, parameters."""
    given = [key for key in _PROMPTS if key in line]
    if not given or ("messages" in given and len(given) > 1):
        raise RequestError("give one of 'prompt', 'prompt_token_ids' and 'messages'")
    known = {*_PARAMETERS, *_OTHERS, *_PROMPTS}
    for key in line:
        if key not in known:
            raise RequestError(f"no parameter is called {key!r}{did_you_mean(key, known)}")
    if not isinstance(line.get("prompt", ""), str):
        raise RequestError(f"'prompt' is a text, not {line['prompt']!r}")
    as_token_ids(line.get("prompt_token_ids", ()))
    messages = line.get("messages", [{}])
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RequestError("'messages' is a list of objects with 'role' and 'content'")
    return Task(
        prompt={key: line[key] for key in given},
        sampling=replace(sampling, **{key: line[key] for key in line if key in _PARAMETERS}),
        fields={key: line[key] for key in line if key in _OTHERS},
    )
