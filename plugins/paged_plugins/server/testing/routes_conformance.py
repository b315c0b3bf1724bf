"""The conformance class of routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import msgspec
from starlette.routing import Route

from paged_plugins.server.http.endpoint import Endpoint, openapi
from paged_plugins.server.http.own_routes import OwnRoutes
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.testing.services import ask, serving
from paged_testing.component import ComponentConformance

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
        """With no status of 500, and none that is not documented."""

        async def test(service: Service, routes: Routes) -> None:
            made = routes.routes()
            for route in made:
                if not isinstance(route, Endpoint):
                    continue
                path = re.sub(r"{\w+(:\w+)?}", "nothing", route.path)
                for body in (*_BODIES, _long_texts(route.body)) if route.body else (None,):
                    status, _ = await ask(service, made, route.method, path, body)
                    sent = repr(body)[:40]
                    assert status != 500, f"{route.method} {path} fails when it is sent {sent}"
                    assert status == 200 or status in route.errors, (
                        f"{route.method} {path} answers {sent} with {status}, which its errors "
                        "do not name"
                    )
            assert service.client.health().num_unfinished == 0, "a request was left behind"

        self.run(test)


def _long_texts(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return a body whose texts are long, as far as its other fields need none."""
    return {
        field.encode_name: "long " * 4000
        for field in msgspec.structs.fields(kind)
        if field.type is str and (field.required or field.name != "model")
    }
