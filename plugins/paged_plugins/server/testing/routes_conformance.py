"""The conformance class of routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any, ClassVar

import msgspec
from msgspec import inspect
from starlette.routing import Route

from paged_plugins.server.http.endpoint import Endpoint, openapi
from paged_plugins.server.http.own_routes import OwnRoutes
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.testing.services import ask, serving
from paged_testing.component import ComponentConformance
from paged_testing.use import waits_watched

_BODIES: tuple[Any, ...] = (
    None,
    b"",
    b"{",
    b"\xff",
    b"[" * 10_000,
    {},
    [],
    "text",
    1,
    {"no such field": 1},
    {"model": "no such model"},
)
"""Unexpected things that a client may send."""


class RoutesConformance(ComponentConformance):
    """Subclass it for a component of the slot ``routes``::

    class TestMyRoutes(RoutesConformance):
        component = "my_routes"
    """

    slot: ClassVar[str] = "routes"

    def make(self, service: Service) -> Routes:
        """A fresh component."""
        made = self.build(service)
        assert isinstance(made, Routes)
        return made

    def run(self, test: Callable[[Service, Routes], Coroutine[Any, Any, None]]) -> None:
        """Run a test with a service."""

        async def main() -> None:
            async with serving(self.registry) as service:
                await test(service, self.make(service))

        asyncio.run(main())

    # ------------------------------------------------------------------ written cases

    def test_paths_are_its_own(self) -> None:
        """None is there twice, or is one of the server's."""

        async def test(service: Service, routes: Routes) -> None:
            made = routes.routes()
            assert made, "it has no route"
            own = [*OwnRoutes(service, dict).routes(), *made]
            paths = [
                (route.path, method)
                for route in own
                if isinstance(route, Route)
                for method in route.methods or ()
            ]
            twice = {path for path in paths if paths.count(path) > 1}
            assert not twice, f"these are there twice: {sorted(twice)}"
            assert all(path.startswith("/") for path, _ in paths)

        self.run(test)

    def test_the_document_can_be_made(self) -> None:
        async def test(_: Service, routes: Routes) -> None:
            made = routes.routes()
            document = openapi(made, has_keys=True, public=())
            paths = [each.path for each in made if isinstance(each, Endpoint)]
            assert set(document["paths"]) == {re.sub(r":\w+}", "}", path) for path in paths}

        self.run(test)

    def test_unexpected_requests_are_answered_as_the_document_says(self) -> None:
        """With no status of 500, and none that is not documented; nothing waits meanwhile."""

        async def check(service: Service, made: list[Endpoint], route: Endpoint) -> None:
            path, bodies = _path(route), list[Any]([None])
            if route.body:
                bodies = [*_BODIES, _long_texts(route.body), *_valid(route.body, service)]
            for body in bodies:
                status, content = await ask(service, made, route.method, path, body)
                sent = repr(body)[:200]
                assert status != 500, f"{route.method} {path} fails when it is sent {sent}"
                assert status == 200 or status in route.errors, (
                    f"{route.method} {path} answers {sent} with {status}, which its errors do not "
                    "name"
                )
                if status == 200 and not isinstance(route.answer, str) and content[:1] in b"{[":
                    _check_answer(content, route, f"{route.method} {path} answers {sent}")
            if route.body:
                body = {**next(_valid(route.body, service)), "no such field": 1}
                status, _ = await ask(service, made, route.method, path, body)
                assert status == 400, (
                    f"{route.method} {path} answers a body with a field that it does not know with "
                    f"{status}: declare it with forbid_unknown_fields=True"
                )

        async def test(service: Service, routes: Routes) -> None:
            made = _endpoints(routes)
            with waits_watched(self.package, "every request", in_coroutines=True):
                for route in made:
                    await check(service, made, route)
            assert service.client.health().num_unfinished == 0, "a request was left behind"

        self.run(test)

    def test_another_service_does_not_matter(self) -> None:
        """One whose engine never takes requests."""

        async def test(service: Service, routes: Routes) -> None:
            before = await self.answers(service, routes)
            async with serving(self.registry, start=False) as other:
                self.make(other).routes()
                after = await self.answers(service, routes)
            assert after == before, (
                f"the statuses of its answers are {before}, and {after} when it was made for "
                "another service, too: keep what one knows in itself, not in its class or module"
            )

        self.run(test)

    async def answers(self, service: Service, routes: Routes, text: str = "text") -> list[int]:
        """Return the statuses of answers to requests that have what they need."""
        made = _endpoints(routes)
        return [
            (await ask(service, made, route.method, _path(route), body))[0]
            for route in made
            for body in islice(_valid(route.body, service, text) if route.body else [None], 1)
        ]

    num_uses: ClassVar[int] = 16

    def uses(self) -> Callable[[int], object]:
        """Each path is asked once more."""
        loop, stack = asyncio.new_event_loop(), AsyncExitStack()
        service = loop.run_until_complete(stack.enter_async_context(serving(self.registry)))
        routes = self.make(service)
        if self._request is not None:
            self._request.addfinalizer(loop.close)
            self._request.addfinalizer(lambda: loop.run_until_complete(stack.aclose()))
        return lambda number: loop.run_until_complete(
            self.answers(service, routes, f"{number:09}" * 100)
        )


def _endpoints(routes: Routes) -> list[Endpoint]:
    return [each for each in routes.routes() if isinstance(each, Endpoint)]


def _path(route: Endpoint) -> str:
    return re.sub(r"{\w+(:\w+)?}", "nothing", route.path)


def _valid(kind: Any, service: Service, text: str = "text") -> Iterator[Any]:
    """Yield bodies of a type: of the fields that it needs, and of all, with several values."""
    known = {"model": service.model_names[0], "": text, 1: 1}
    for changed in ({}, {"": ""}, {"": "\N{SNOWMAN}\u2028"}, {1: 0}, {1: -1}, {1: 5000}):
        for whole in (False, True):
            yield _value(inspect.type_info(kind), whole, 4, {**known, **changed})


def _check_answer(content: bytes, route: Endpoint, what: str) -> None:
    try:
        msgspec.json.decode(content, type=route.answer)
    except msgspec.MsgspecError as error:
        raise AssertionError(
            f"{what} with {content[:200]!r}, which is not as the document says: {error}"
        ) from None


def _value(kind: Any, whole: bool, depth: int, known: Mapping[Any, Any]) -> Any:
    """Return a value of a type.

    Args:
        whole: with all fields, down to a depth.
        known: values of some fields, of texts ("") and of numbers (1).
    """
    match kind:
        case inspect.StructType():
            return {
                each.encode_name: known.get(each.name, _value(each.type, whole, depth - 1, known))
                for each in kind.fields
                if each.required or (whole and depth > 0)
            }
        case inspect.UnionType():
            return _value(kind.types[0], whole, depth, known)
        case inspect.ListType() | inspect.VarTupleType():
            return [_value(kind.item_type, whole, depth - 1, known)] if depth > 0 else []
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.IntType() | inspect.FloatType():
            return known[1] if kind.ge is None else max(kind.ge, known[1])
        case inspect.StrType():
            return known[""]
        case inspect.BoolType():
            return True
        case inspect.DictType():
            return {}
    return None


def _long_texts(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a body whose texts are long, as far as its other fields need none."""
    return {
        field.encode_name: "long " * 4000
        for field in msgspec.structs.fields(kind)
        if field.type is str and (field.required or field.name != "model")
    }
