"""Messages between a front end's process and an engine's: msgpack, of known types, over ZeroMQ.

Nothing is unpickled, and no message is larger than ``MOST``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import msgspec

from paged_core import errors
from paged_core.client.news import News
from paged_core.errors import EngineError, PagedCoreError, RequestError, error_text
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams, processor_name

MOST = 64 << 20
"""Bytes of a message at most."""

_DEFAULTS = SamplingParams()


class Add(msgspec.Struct, tag="add", array_like=True):
    """Serve a request."""

    number: int
    age: float
    """Seconds since it arrived."""
    id: str
    prompt: list[int]
    sampling: dict[str, Any]
    """What differs from the defaults."""
    priority: int
    cache_salt: str | None
    tenant: str
    deadline: float | None
    """Seconds after its arrival."""


class Abort(msgspec.Struct, tag="abort", array_like=True):
    number: int


class Ask(msgspec.Struct, tag="ask", array_like=True):
    """Answer a question."""

    question: int
    name: str
    arguments: dict[str, Any]


class Ping(msgspec.Struct, tag="ping", array_like=True):
    """Show that you live."""


class Close(msgspec.Struct, tag="close", array_like=True):
    """End."""


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The engine takes requests."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int


class Told(msgspec.Struct, tag="news", array_like=True):
    """What came of a step."""

    news: News


class Answer(msgspec.Struct, tag="answer", array_like=True):
    question: int
    value: Any = None
    error: tuple[str, str] | None = None
    """The name of an error of ours, and its message."""


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """The engine could not be started, or has stopped."""

    error: tuple[str, str]


ToEngine = Add | Abort | Ask | Ping | Close
FromEngine = Ready | Told | Answer | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def add_message(number: int, request: Request, now: float) -> bytes:
    """Return the message that has a request served.

    Raises:
        RequestError: it holds what cannot be sent to another process, or is too long.
    """
    sampling = {}
    for field in fields(SamplingParams):
        value = getattr(request.sampling, field.name)
        if value != getattr(_DEFAULTS, field.name):
            sampling[field.name] = value
    if "logits_processors" in sampling:
        names = ", ".join(map(processor_name, request.sampling.logits_processors))
        raise RequestError(
            f"logits processors ({names}) are functions, which cannot be sent to the engine's "
            "process; run the engine in this one, or bring them as a component"
        )
    after = None if request.deadline is None else request.deadline - request.arrival
    message = encode(
        Add(
            number,
            now - request.arrival,
            request.id,
            list(request.prompt),
            sampling,
            request.priority,
            request.cache_salt,
            request.tenant,
            after,
        )
    )
    if len(message) > MOST:
        raise RequestError(
            f"request {request.id!r} takes {len(message)} bytes, and {MOST} can be sent to the "
            "engine's process"
        )
    return message


def added_request(add: Add) -> Request:
    """Return what :func:`add_message` was given; its arrival is 0."""
    return Request(
        id=add.id,
        prompt=tuple(add.prompt),
        sampling=SamplingParams(**add.sampling),
        priority=add.priority,
        cache_salt=add.cache_salt,
        tenant=add.tenant,
        deadline=add.deadline,
    )


class TooLarge(EngineError):
    """A message is larger than ``MOST``."""


def tell(news: News, send: Callable[[Told], None], abort: Callable[[int], None]) -> None:
    """Send news, in several messages if one would be too large.

    A request of which a single piece is too large, since it asked for the log-probabilities of
    very many tokens, is refused and aborted; the others go on.
    """
    try:
        send(Told(news))
        return
    except TooLarge:
        pieces = [(each.number, News(starts=[each])) for each in news.starts]
        pieces += [(each.number, News(gains=[each])) for each in news.gains]
    for number, piece in pieces:
        try:
            send(Told(piece))
        except TooLarge as error:
            reason = f"its log-probabilities take {error}; ask for those of fewer tokens"
            send(Told(News(refused=[(number, reason, False)])))
            abort(number)
    send(Told(replace(news, starts=[], gains=[])))


def named_error(error: BaseException) -> tuple[str, str]:
    """Return the name of an error of ours, or of one that stands for another, and its message."""
    if isinstance(error, PagedCoreError):
        ours = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return ours.__name__, str(error)
    return EngineError.__name__, error_text(error)


def raised(error: tuple[str, str]) -> PagedCoreError:
    """Return the error that :func:`named_error` named."""
    name, message = error
    kind: type[PagedCoreError] = getattr(errors, name)
    return kind(message)
