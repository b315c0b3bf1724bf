"""The file of ``--prompts-file``: a prompt a line, or in JSONL a prompt with its parameters."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from paged_core.errors import RequestError, SettingsError, did_you_mean
from paged_core.sampling_params import SamplingParams
from paged_core.settings.documents import parse_json
from paged_core.text.front_end import as_token_ids
from paged_core.text.outputs import CompletionOutput, RequestOutput

_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_IGNORED = {"model", "user", "metadata", "store", "service_tier"}
_RENAMED = {"max_completion_tokens": "max_tokens"}
_ABSENT: Mapping[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "echo": (False, None),
    "logprobs": (False, None),
    "logit_bias": ({}, None),
    "tools": ([], None),
    "suffix": ("", None),
}
"""Fields that are not supported, and their values that ask for nothing."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One line of a batch file."""

    custom_id: str
    url: str
    values: Mapping[str, Any]
    """The prompt or the messages, and sampling parameters."""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """Return what a line asks for; its parameters are checked elsewhere.

        Raises:
            RequestError: it is no line of that format, or asks for what is not supported.
        """
        for key, kind in {"custom_id": str, "method": str, "url": str, "body": dict}.items():
            if not isinstance(line.get(key), kind):
                raise RequestError(
                    "a line of a batch has the texts 'custom_id', 'method' and 'url' and the "
                    f"object 'body'; {key!r} is {'wrong' if key in line else 'missing'}"
                )
        if line["method"] != "POST" or line["url"] not in (_COMPLETIONS, _CHAT):
            raise RequestError(
                f"{line['method']} {line['url']} is not there; write POST {_COMPLETIONS} or "
                f"POST {_CHAT}"
            )
        needed = "messages" if line["url"] == _CHAT else "prompt"
        if needed not in line["body"]:
            raise RequestError(f"the body for {line['url']} needs {needed!r}")
        return cls(line["custom_id"], line["url"], dict(_parameters(line["body"])))

    def response(self, output: RequestOutput, model: str) -> dict[str, Any]:
        """Return the line that answers it."""
        if errors := [one.error for one in output.outputs if one.error is not None]:
            return self.failure(errors[0], status=500)
        is_chat = self.url == _CHAT
        generated = sum(len(one.token_ids) for one in output.outputs)
        prompt = len(output.prompt_token_ids)
        body = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{output.request_id}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [_choice(one, is_chat=is_chat) for one in output.outputs],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "total_tokens": prompt + generated,
                "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens or 0},
            },
        }
        return self._line(200, body)

    def failure(self, message: str, *, status: int = 400) -> dict[str, Any]:
        """Return the line that says why there is no answer."""
        kind = "invalid_request_error" if status == 400 else "server_error"
        return self._line(status, {"error": {"message": message, "type": kind, "code": status}})

    def _line(self, status: int, body: dict[str, Any]) -> dict[str, Any]:
        response = {"status_code": status, "request_id": self.custom_id, "body": body}
        return {
            "id": f"batch_req_{self.custom_id}",
            "custom_id": self.custom_id,
            "response": response,
            "error": None,
        }


def _parameters(body: Mapping[str, Any]) -> Any:
    for key, value in body.items():
        if key in _ABSENT:
            if value not in _ABSENT[key]:
                raise RequestError(f"{key!r} is not supported in a batch; leave it out")
        elif key not in _IGNORED and value is not None:
            is_tokens = key == "prompt" and isinstance(value, list)
            yield ("prompt_token_ids" if is_tokens else _RENAMED.get(key, key)), value


def _choice(completion: CompletionOutput, *, is_chat: bool) -> dict[str, Any]:
    message = {"role": "assistant", "content": completion.text}
    reason = completion.finish_reason and completion.finish_reason.value
    return {
        "index": completion.index,
        **({"message": message} if is_chat else {"text": completion.text}),
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": completion.stop_reason,
    }


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
    asked: Mapping[str, Any]
    """Sampling parameters that were given."""
    sampling: SamplingParams
    """Parameters with our own defaults, in place of the model's: those of the engine follow."""
    fields: Mapping[str, Any]
    """Fields of the request: ``priority``, ``cache_salt``."""
    batch: BatchRequest | None = None
    """The line of a batch file that asks for it."""
    problem: RequestError | None = None
    """Error of a line that asks for nothing that can be run."""


def task_of(prompt: Any, asked: Mapping[str, Any], **fields: Any) -> Task:
    """Return the task of a prompt; ``RequestError``: its parameters are wrong."""
    sampling = SamplingParams(**{"max_tokens": None, **asked})
    return Task(prompt=prompt, asked=asked, sampling=sampling, fields=fields)


def read_tasks(name: str, asked: Mapping[str, Any]) -> list[Task]:
    """Return what a file asks for; ``-`` is standard input.

    Args:
        asked: parameters that hold where a line does not say others.

    Raises:
        SettingsError: the file cannot be read or is too large.
    """
    tasks = []
    for number, line in _lines(name):
        if not name.endswith(".jsonl"):
            tasks.append(task_of(line, asked))
            continue
        found: Any = None
        try:
            found = _decoded(line)
            tasks.append(_task(found, asked))
        except RequestError as error:
            problem = RequestError(f"{name}, line {number}: {error}")
            custom_id = found.get("custom_id") if isinstance(found, dict) else None
            batch = BatchRequest(custom_id, "", {}) if isinstance(custom_id, str) else None
            tasks.append(replace(task_of(None, {}), batch=batch, problem=problem))
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


def _task(line: Any, asked: Mapping[str, Any]) -> Task:
    if isinstance(line, (str, list)):
        return task_of(line, asked)
    if not isinstance(line, dict):
        raise RequestError("it is neither a text, nor a list of token ids, nor an object")
    if "custom_id" in line or "body" in line:
        batch = BatchRequest.of(line)
        return replace(_with_parameters(batch.values, asked), batch=batch)
    return _with_parameters(line, asked)


def _with_parameters(line: Mapping[str, Any], asked: Mapping[str, Any]) -> Task:
    """Return the task of an object with a prompt or messages and, beside it, parameters."""
    given = [key for key in _PROMPTS if key in line]
    if len(given) != 1:
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
    own = {key: line[key] for key in line if key in _PARAMETERS}
    fields = {key: line[key] for key in line if key in _OTHERS}
    return task_of({key: line[key] for key in given}, {**asked, **own}, **fields)
