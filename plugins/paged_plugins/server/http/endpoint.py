"""One path of the API: its body is checked before it is called, and it is in the document."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paged_core._version import __version__
from paged_plugins.server.errors import ApiError, ErrorAnswer, ErrorForm, invalid, shortened
from paged_plugins.server.parsers.json_text import MAX_DEPTH

Handler = Callable[..., Awaitable[Response]]
"""Takes Starlette's request and, if the endpoint has one, its body."""

EVENTS = "text/event-stream"
_NULL = msgspec.Raw(b"null")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
"""An escape; the group: half of a surrogate pair, where JavaScript has cut a text."""
_COMMON: Mapping[int, str] = {
    400: "The request is wrong; `param` names the field.",
    401: "A key is needed, or is wrong.",
    403: "It comes from a page of a site that is not allowed.",
    421: "It is for a host that is not served.",
    500: "The server or the engine failed.",
}
_WITH_BODY = {
    408: "The request did not arrive in time.",
    413: "The body is too large.",
}
GENERATES = {
    404: "There is no such model.",
    429: "Too much waits already; `Retry-After` says when to try again.",
    499: "The request was aborted by another one.",
    503: "The engine takes no requests now.",
    504: "The deadline of the request has passed.",
}
"""Further statuses of endpoints that generate."""
TOKENISES = {status: GENERATES[status] for status in (404, 429, 503)}
"""Further statuses of endpoints that look at text alone."""


class Endpoint(Route):
    """A route that is in the OpenAPI document.

    Args:
        body: a msgspec ``Struct`` that the body must be; ``None``: there is none.
        answer: a ``Struct`` or type that the answer is, as JSON; a string: a media type.
        events: what the data of events is, if the body has ``"stream": true``; ``None``: it cannot.
        errors: statuses besides those of all endpoints, and what they mean.
        error: how they are answered.
    """

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        summary: str,
        answer: Any,
        body: type[msgspec.Struct] | None = None,
        events: Any = None,
        errors: Mapping[int, str] | None = None,
        error: ErrorForm = ErrorAnswer,
    ) -> None:
        self.method, self.handler, self.summary = method, handler, summary
        self.body, self.answer, self.events, self.error = body, answer, events, error
        self.errors = {**_COMMON, **(_WITH_BODY if body else {}), **(errors or {})}
        self._decoder = None if body is None else msgspec.json.Decoder(body)
        super().__init__(path, self._handle, methods=[method], name=f"{method} {path}")

    async def _handle(self, request: Request) -> Response:
        if self._decoder is None:
            return await self.handler(request)
        body = decode(self._decoder, await request.state.read())
        request.state.fields = given_fields(body)
        session = request.headers.get("x-session-id")
        if session and getattr(body, "prompt_cache_key", session) is None:
            body.prompt_cache_key = session
        return await self.handler(request, body)


def given_fields(body: msgspec.Struct) -> frozenset[str]:
    """Return the names of the fields that a body has."""
    return frozenset(name for name in body.__struct_fields__ if getattr(body, name) is not None)


def translate(request: Request, names: Mapping[str, str]) -> None:
    """Make errors of a request that becomes a chat name the fields that were sent.

    Args:
        names: by the pattern of a field of chat completions, what is said in its place.
    """
    request.state.names = names
    request.state.fields |= {"messages"}


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Return the value of a body.

    Raises:
        ApiError: it is no JSON, or not what it should be.
    """
    try:
        return _decoded(decoder, body)
    except msgspec.ValidationError as error:
        raise invalid(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deep", code="invalid_json") from None


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        rest = _without_nulls(body) if "unknown field" in str(error) else None
        if rest is None:
            raise
        return decoder.decode(rest)
    except msgspec.DecodeError:
        whole = _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], body)
        if whole == body:
            raise
        return _decoded(decoder, whole)


def _without_nulls(body: bytes) -> bytes | None:
    """Return an object without its fields that are null; ``None``: it has none.

    Some clients send every field of their API, and null for those that they do not set.
    """
    found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])  # makes nothing of the values
    given = {name: value for name, value in found.items() if value != _NULL}
    return msgspec.json.encode(given) if len(given) < len(found) else None


def warn(request: Request, words: Iterable[str]) -> None:
    """Say in a header of the answer, and in the log, what of a request is not as it was asked."""
    request.state.warnings.extend(shortened(each) for each in words)


def skipped(tools: Collection[str], parts: Collection[str] = ()) -> Iterator[str]:
    """Yield warnings of tools, and of parts of conversations, that a model is not told of."""
    if tools:
        yield f"tools that this server cannot run were skipped: {', '.join(tools)}"
    if parts:
        yield f"parts of other servers' tools were skipped: {', '.join(parts)}"


def check_depth(name: str, value: Any) -> None:
    """Refuse JSON that is nested deeper than whatever works on it might stand.

    Raises:
        ApiError: it is.
    """
    level, depth = _containers([value]), 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            message = f"{name} is nested deeper than {MAX_DEPTH} levels"
            raise ApiError(400, message, param=name)
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = _containers(chain.from_iterable(inner))


def _containers(values: Iterable[Any]) -> list[Any]:
    return [each for each in values if isinstance(each, dict | list)]


def json_response(value: Any, status: int = 200) -> Response:
    """Return an answer as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def openapi(routes: Iterable[BaseRoute], *, has_keys: bool, public: Iterable[str]) -> Any:
    """Return the OpenAPI document of the endpoints among some routes.

    Args:
        public: paths that need no key.
    """
    endpoints = [route for route in routes if isinstance(route, Endpoint)]
    types: set[Any] = {each.body for each in endpoints if each.body is not None}
    types |= {each.answer for each in endpoints if not isinstance(each.answer, str)}
    types |= {each.events for each in endpoints if each.events is not None}
    types |= {each.error for each in endpoints}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, Any] = {}
    for each in endpoints:
        operation = _operation(each, by_type)
        if has_keys and each.path not in public:
            operation["security"] = [{"bearer": []}, {"basic": []}, {"x-api-key": []}]
        path = re.sub(r":\w+}", "}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "paged_core", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "basic": {"type": "http", "scheme": "basic"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return document


def _operation(endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    answer = endpoint.answer
    media = (
        {answer: {"schema": {"type": "string"}}}
        if isinstance(answer, str)
        else {"application/json": {"schema": schemas[answer]}}
    )
    if endpoint.events is not None:
        data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
        properties: dict[str, Any] = {
            "event": {"type": "string", "description": "error: the last one, if it failed"},
            "data": {**data, "contentSchema": schemas[endpoint.events]},
        }
        event: dict[str, Any] = {"type": "object", "properties": properties, "required": ["data"]}
        media[EVENTS] = {"schema": event}  # of each event: such is the custom
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": media}}
    for status, meaning in sorted(endpoint.errors.items()):
        error = {"application/json": {"schema": schemas[endpoint.error]}}
        responses[str(status)] = {"description": meaning, "content": error}
    name = re.sub(r"\W+", "_", endpoint.path).strip("_")
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.method.lower()}_{name}",
        "summary": endpoint.summary,
        "responses": responses,
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": schemas[endpoint.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    parameters = re.findall(r"\{(\w+)(?::\w+)?\}", endpoint.path)
    if parameters:
        operation["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string"}}
            for each in parameters
        ]
    return operation
