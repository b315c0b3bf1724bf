"""Errors of requests, in the form of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any, ClassVar, Protocol

import msgspec

from paged_core.errors import (
    AdmissionRefused,
    EngineError,
    EngineLost,
    PluginError,
    RequestError,
    error_text,
    stack_text,
)
from paged_core.log import get_logger
from paged_core.terminal import printable
from paged_plugins.server.allowed import allowed_values

_MAX_BYTES = 1024
"""Most bytes of a message, which may repeat what a client sent, and of a field's name."""
_MAX_SAID = 200
"""Most bytes of it that repeat a value."""
_TEXT = frozenset({"text", "text/plain"})
"""Kinds that are listed where only text is served."""
_FIELD = re.compile(r"[a-z_]+(?=[\s(,:]|$)")
_PLACE = re.compile(r"^(.*) - at (?:`key` in )?`\$(?:\.)?(.*)`$", re.DOTALL)
_TOO_LONG = re.compile(
    r"prompt of (?P<length>\d+) tokens, which leaves no room to generate within "
    r"max_model_len=(?P<room>\d+)"
    r"|prompt has (?P<letters>\d+) characters, of which the first (?P<first>\d+) are more than the "
    r"(?P<most>\d+) tokens that a sequence may have"
)
_OF_PROMPT = re.compile(rf"^(a|the) prompt |has token id \d+, which is outside|{_TOO_LONG.pattern}")
_MADE_OF = {
    "structured_outputs": ("structured_outputs", "response_format", "tools"),
    "max_tokens": ("max_completion_tokens", "max_tokens"),
}
"""By fields: those that they were made of, the one that comes first before others."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
RETRY_SECONDS = 1
TOO_LONG = "context_length_exceeded"
"""Code of an error whose message has two numbers: the most tokens, and how many there are."""
_PYTHON_WORD = re.compile(r"(?<!['\"\w.])(True|False|None)(?!['\"\w.])")
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}

_log = get_logger()


class ErrorBody(msgspec.Struct, kw_only=True):
    """Description of an error."""

    message: str
    type: str
    param: str | None = None
    """The field of the request that is to blame."""
    code: str | None = None
    """A name for programs."""


class ErrorAnswer(msgspec.Struct):
    """The body of every answer that is an error, and of the event that ends a stream with one."""

    error: ErrorBody
    asked_by: ClassVar[bytes] = b""
    id_header: ClassVar[bytes] = b"x-request-id"

    @classmethod
    def of(cls, error: ApiError) -> ErrorAnswer:
        """Return what is answered for an error."""
        return error.answer


class ErrorForm(Protocol):
    """Class of the ``msgspec.Struct`` with which an API answers an error."""

    asked_by: bytes
    """Header of requests that want this form whatever their path is; empty: there is none."""
    id_header: bytes
    """Header in which its clients look for the id of a request."""

    def of(self, error: ApiError, /) -> msgspec.Struct:
        """Return what is answered for an error."""


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        code: a name for programs; ``None``: OpenAI has none for it.
        retry_after: seconds after which the same request may be answered.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.headers = headers or {}
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.answer = ErrorAnswer(
            ErrorBody(
                message=shortened(_PYTHON_WORD.sub(lambda word: _JSON_WORDS[word[1]], message)),
                type=_TYPES.get(status, kind),
                param=None if param is None else shortened(param),
                code=code,
            )
        )

    @property
    def code(self) -> str:
        """Name of the error in logs."""
        return self.answer.error.code or self.answer.error.param or self.answer.error.type

    @property
    def event(self) -> bytes:
        """The last event of a stream that ends with it."""
        return b"event: error\ndata: " + msgspec.json.encode(self.answer) + b"\n\n"

    def all_headers(self) -> dict[str, str]:
        """Return the headers of the answer, besides those of its body."""
        if self.retry_after is None:
            return self.headers
        return {"retry-after": str(max(1, ceil(self.retry_after))), **self.headers}


def refused(param: str, message: str) -> ApiError:
    """Return the error of a field that has a wrong value."""
    return ApiError(400, message, param=param)


def as_api_error(error: BaseException, fields: Any = ()) -> ApiError:
    """Return what to answer for something that was raised; what is no error of a request is logged.

    Args:
        fields: that the request has, one of which may be to blame.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, AdmissionRefused):
        return ApiError(429, str(error), code="refused", retry_after=error.retry_after)
    if isinstance(error, RequestError):
        param, message = _blamed(str(error), fields)
        if (found := _TOO_LONG.search(str(error))) is None:
            return ApiError(400, message, param=param)
        return ApiError(400, _too_long(found), param=param, code=TOO_LONG)
    if isinstance(error, msgspec.ValidationError):
        return invalid(error)
    if isinstance(error, EngineLost):
        return ApiError(500, str(error), code="engine_lost")
    if isinstance(error, EngineError):
        return ApiError(503, str(error), code="not_ready", retry_after=RETRY_SECONDS)
    if isinstance(error, TimeoutError):
        return ApiError(504, "the request's deadline has passed", code="deadline_exceeded")
    if isinstance(error, PluginError):
        return ApiError(500, str(error), code="component_failed")
    _log.error("request_failed", reason=error_text(error), traceback=stack_text(error))
    return ApiError(500, "the server failed to answer; its log says why", code="internal_error")


def answered(error: BaseException, state: Mapping[str, Any]) -> ApiError:
    """Return what to answer for something that was raised, in the words of the API.

    Args:
        state: of the request: its ``fields``; and ``names``: by the pattern of a field of chat
            completions, what is said in its place.
    """
    found = as_api_error(error, state.get("fields", ()))
    body, names = found.answer.error, state.get("names", {})
    for pattern, name in names.items():
        field = rf"(?<![\w.]){pattern}(?!\w)"
        body.message = shortened(re.sub(field, name, body.message))
        body.param = None if body.param is None else re.sub(field, name, body.param)
    return found


def _too_long(found: re.Match[str]) -> str:
    """Say that a prompt is too long, in the words by which clients know it."""
    if found["length"] is not None:
        most, length = found["room"], found["length"]
    else:  # as many tokens to the character as its beginning has at least
        most = found["most"]
        length = f"about {int(found['letters']) * int(most) // int(found['first']) + 1}"
    said = f"This model's maximum context length is {most} tokens, and the prompt has {length}"
    return f"{said}, which leaves no room to generate; shorten it"


def _blamed(message: str, fields: Any) -> tuple[str | None, str]:
    """Return the field of a request that a message is about, and the message with its name."""
    if _OF_PROMPT.search(message):
        return next((name for name in ("prompt", "messages") if name in fields), None), message
    found = _FIELD.match(message)
    for name in () if found is None else _MADE_OF.get(found[0], (found[0],)):
        if name in fields:
            return name, name + message[found.end() :]  # type: ignore[union-attr]
    return None, message


def invalid(error: msgspec.ValidationError, kind: Any = None, within: str = "") -> ApiError:
    """Return the error of a body that is JSON and not what it should be.

    Args:
        kind: its type, which says the values that may be in place of a wrong one.
        within: the field that was looked at by itself.
    """
    text = str(error)
    place = _PLACE.match(text)
    what, param = (place[1], place[2]) if place else (text, "")
    allowed = allowed_values(kind, param) if kind is not None else []
    param = ".".join(filter(None, (within, param)))
    unknown = re.match(r"Object contains unknown field `(.*)`$", what, re.DOTALL)
    missing = re.match(r"Object missing required field `(.*)`$", what, re.DOTALL)
    if unknown or missing:
        name = (unknown or missing)[1]  # type: ignore[index]
        path = f"{param}.{name}" if param else name
        if missing:
            return refused(path, f"{path} is missing; give it")
        hint = _INSTEAD.get(name, "leave it out, or see the server's /openapi.json")
        return ApiError(
            400, f"{path} is no field of this request: {hint}", param=path, code="unknown_field"
        )
    where = f"{param}: " if param else "the body: "
    unserved = re.match(r"Expected `null`|Invalid (?:enum )?value '(.*)'$", what, re.DOTALL)
    instead = None
    if unserved:
        instead = _INSTEAD.get(unserved[1]) or _INSTEAD.get(param.rpartition(".")[2])
    if unserved and instead is None and allowed:
        instead = f"it may be {', '.join(map(str, allowed))}"
        if not _TEXT.isdisjoint(allowed):
            instead = f"only text is served: {instead}"
    what = shortened(f"{what[:1].lower()}{what[1:]}", _MAX_SAID)
    return ApiError(400, f"{where}{what}{f'; {instead}' if instead else ''}", param=param or None)


_INSTEAD = {
    "guided_json": "use response_format",
    "guided_regex": "use structured_outputs",
    "guided_choice": "use structured_outputs",
    "guided_grammar": "use structured_outputs",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "parameters": "use input_schema",
    "logits_processors": "a server runs no code of its clients",
    "previous_response_id": "nothing is stored: send what was said before as input",
    "conversation": "nothing is stored: send what was said before as input",
    "item_reference": "nothing is stored, so that items have to be sent themselves: set store to "
    "false in the client (in Vercel's AI SDK providerOptions.openai.store)",
    "encrypted_content": "thoughts are sent as they are, as content",
    "suffix": "texts are not filled in between others; leave it out",
    "audio": "only text is served",
}
"""Remedies for fields and values that other servers have or had."""


def shortened(message: str, most: int = _MAX_BYTES) -> str:
    """Return a message in one line, of at most so many bytes."""
    line = " ".join(printable(message).split())
    encoded = line.encode("utf-8", "replace")
    if len(encoded) <= most:
        return encoded.decode()
    return encoded[: most - 3].decode("utf-8", "ignore") + "..."
