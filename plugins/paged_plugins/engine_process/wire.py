"""Messages between a front end's process and an engine's: msgpack, of known types.

Nothing is unpickled.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec

from paged_core.client.news import News
from paged_core.errors import RequestError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams, processor_name

START, MESSAGE = b"I", b"M"
"""Kinds of messages: the orders, first; what is declared here."""

_DEFAULTS = SamplingParams()


class Orders(msgspec.Struct, array_like=True):
    """Settings of the engine that a process is started for."""

    settings: dict[str, Any]
    blocked: list[str]
    log_level: str | None


class Add(msgspec.Struct, tag="add", array_like=True):
    """Serve a request."""

    number: int
    age: float
    """Seconds since it arrived."""
    id: str
    prompt: list[int]
    sampling: dict[str, Any]
    """Parameters that differ from the defaults."""
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


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The engine takes requests."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int


class Told(msgspec.Struct, tag="news", array_like=True):
    """News of a step."""

    news: News


class Answer(msgspec.Struct, tag="answer", array_like=True):
    question: int
    value: Any = None
    error: tuple[str, str] | None = None
    """The name of an error of ours, and its message."""


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """The engine could not be started, or has stopped."""

    error: tuple[str, str]


ToEngine = Add | Abort | Ask
FromEngine = Ready | Told | Answer | Failed

encode = msgspec.msgpack.Encoder().encode
decode_orders = msgspec.msgpack.Decoder(Orders).decode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def add_message(number: int, request: Request, now: float) -> bytes:
    """Return the message that has a request served.

    Raises:
        RequestError: it holds what cannot be sent to another process.
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
    return encode(
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
