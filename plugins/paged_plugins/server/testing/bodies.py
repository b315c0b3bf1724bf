"""Bodies of requests, by what an endpoint declares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain
from random import Random
from typing import Any

import msgspec
from msgspec import inspect
from starlette.routing import Route

from paged_plugins.server.http.endpoint import EVENTS, Endpoint
from paged_plugins.server.testing.services import Answered, WatchedService, ask

_TEXTS = ("", "\N{SNOWMAN}\u2028", "\ud800", "\0\r\n", "long " * 4000)
_NUMBERS = (1, 0, -1, 5000, 1 << 62)
TEXT, NUMBER = "a text of a use", 10_000
"""In the bodies of uses, each of which has others."""
MANY = 20
"""Items of a list."""
_MOST_REFUSED = 100
"""Bodies of a route of which those that are refused are looked for."""


def paths_of(
    route: Route, said: Sequence[str] = ("nothing", "0", "-1", "\N{SNOWMAN}")
) -> list[str]:
    """Return the path with values of its parameters."""
    said = said if route.param_convertors else said[:1]
    return [re.sub(r"{\w+(:\w+)?}", each, route.path) for each in said]


def bodies_of(kind: Any, service: WatchedService, text: str = "text", number: int = 1) -> list[Any]:
    """Return bodies of a type: with the fields that it needs, and then with each value of each."""
    known: dict[str, Any] = {"model": [service.model_names[0], "no such model"]}
    known |= {"": [text, *_TEXTS], "0": [number, *_NUMBERS[1:]]}
    return [*_values(inspect.type_info(kind), 5, known)]


def usual_body(route: Route, service: WatchedService, text: str = "text") -> Any:
    """Return the body that a request to a route needs."""
    if not isinstance(route, Endpoint) or not route.body:
        return None
    bodies = bodies_of(route.body, service, text)
    for body in bodies:
        with suppress(msgspec.ValidationError):
            msgspec.convert(body, route.body)
            return body
    return bodies[0]


async def forms_of(service: WatchedService, route: Endpoint) -> list[str | None]:
    """Return bodies that a route answers, as JSON: the one that it needs, one of as many fields as
    it takes, and that as events; :func:`filled` makes them others."""
    if not route.body:
        return [None]
    (needed, every), found = bodies_of(route.body, service, TEXT, NUMBER)[:2], list[Any]()
    many = dict(needed)
    for name in (each for each in every if each not in needed):
        body = {**many, name: every[name]}
        answered = await ask(service, [route], route.method, paths_of(route)[0], body)
        if is_stream(answered):
            found.append(name)
        elif answered.status == 200 and every[name] is not True:
            many = body
    events = [{**many, name: True} for name in found]
    return [json.dumps(each) for each in (needed, many, *events)]


def filled(form: str | None, text: str, number: int) -> bytes | None:
    """Return a body of a form with another text and another number."""
    parts = ((TEXT, text), (str(NUMBER), str(NUMBER + number)))
    made = reduce(lambda found, pair: found.replace(*pair), parts, form or "")
    return made.encode() or None


async def refused_by(service: WatchedService, route: Endpoint) -> list[str | None]:
    """Return bodies that have the form that a route takes and are refused, each otherwise."""
    found = dict[bytes, str | None]()
    bodies = bodies_of(route.body, service, TEXT, NUMBER) if route.body else []
    for body in Random(2).sample(bodies, min(len(bodies), _MOST_REFUSED)):
        with suppress(msgspec.ValidationError):
            msgspec.convert(body, route.body)
            answered = await ask(service, [route], route.method, paths_of(route)[0], body)
            if 400 <= answered.status < 500:
                found.setdefault(re.sub(rb"\d+", b"", answered.content), json.dumps(body))
    return [*found.values()]


def is_stream(found: Answered) -> bool:
    """Return whether an answer is one of events."""
    return found.status == 200 and EVENTS in found.headers.get("content-type", "")


def _values(kind: Any, depth: int, known: Mapping[str, Sequence[Any]]) -> Iterator[Any]:
    """Yield values of a type, the usual one first; of a structure, each with one that is unusual.

    Args:
        known: values of some fields, of texts ("") and of numbers ("0").
    """
    match kind:
        case inspect.StructType() if depth > 0:
            fields = {
                each.encode_name: (each.required, found)
                for each in kind.fields
                if (found := known.get(each.name) or [*_values(each.type, depth - 1, known)])
            }
            needed = {name: found[0] for name, (is_needed, found) in fields.items() if is_needed}
            yield needed
            yield {name: found[0] for name, (_, found) in fields.items()}
            for name, (_, found) in fields.items():
                yield from ({**needed, name: value} for value in found)
        case inspect.Metadata():
            yield from (kind.extra_json_schema or {}).get("examples", ())
            yield from _values(kind.type, depth, known)
        case inspect.UnionType():
            yield from chain.from_iterable(_values(each, depth, known) for each in kind.types)
        case inspect.ListType() | inspect.VarTupleType() if depth > 0:
            items = [*_values(kind.item_type, depth - 1, known)]
            many = (items[:1] * number for number in (MANY, 5 * MANY))
            yield from (items[:1], [], *([each] for each in items[1:]), *many)
        case inspect.DictType() if depth > 0:
            yield from ({}, *({"a": each} for each in _values(kind.value_type, depth - 1, known)))
        case inspect.LiteralType():
            yield from kind.values
        case inspect.EnumType():
            yield from (each.value for each in kind.cls)
        case inspect.IntType() | inspect.FloatType():
            yield from () if kind.ge is None else (kind.ge,)
            yield from () if kind.gt is None else (kind.gt + 1,)
            yield from known["0"]
            yield from (1e308,) if isinstance(kind, inspect.FloatType) else ()
        case inspect.StrType():
            yield from (each.ljust(kind.min_length or 0, "x") for each in known[""][:1])
            yield from known[""][1:]
        case inspect.BoolType():
            yield from (True, False)
        case inspect.AnyType() | inspect.RawType():
            yield from ({}, "text", 1, [], None)
        case inspect.NoneType():
            yield None
