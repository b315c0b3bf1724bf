"""Routes that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Any

import msgspec
from starlette.responses import Response

from paged_plugins.server.http.endpoint import Endpoint, json_response
from paged_plugins.server.routes import Routes
from unit.faulty_settings import with_another


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """Part of a body."""

    name: str
    count: int = 0


class Items(msgspec.Struct, forbid_unknown_fields=True):
    """A body."""

    items: list[Item]


class Anything(msgspec.Struct):
    """A body with any fields."""

    items: list[Item]


class _Routes(Routes):
    service: Any = None

    def __init__(self, options: Any, service: Any, /) -> None:
        self.asked: list[str] = []
        self.found = service

    def routes(self) -> list[Endpoint]:
        about = {"summary": "Count.", "body": Items, "answer": Item}
        return [Endpoint("POST", "/count", self.answer, **about)]

    async def answer(self, request: Any, body: Items) -> Response:
        self.act(body)
        return json_response(body.items[0] if body.items else Item("none"))

    def act(self, body: Items) -> object:
        """Look at a body."""


class TolerantRoutes(_Routes):
    """Takes fields that it does not know."""

    def routes(self) -> list[Endpoint]:
        about = {"summary": "Count.", "body": Anything, "answer": Item}
        return [Endpoint("POST", "/count", self.answer, **about)]


ACTS = {
    "SleepingRoutes": lambda self, body: sleep(0),
    "ReadingRoutes": lambda self, body: Path(__file__).read_text(encoding="utf-8"),
    "KeepingRoutes": lambda self, body: self.asked.extend(each.name for each in body.items),
    # looks for a name that only the author uses
    "NamedRoutes": lambda self, body: {"mine": 1}[body.items[0].name] if body.items else 0,
    # takes letters for what they may be, and numbers
    "LetterRoutes": lambda self, body: [each.name[0] for each in body.items],
    "AsciiRoutes": lambda self, body: [each.name.encode("ascii") for each in body.items],
    "SharesRoutes": lambda self, body: [60 // each.count for each in body.items],
    # has the service of the last one that was made
    "LastRoutes": lambda self, body: LastService.last.front_end,
}


class LastService(_Routes):
    """Knows the last service."""

    last: Any = None

    def __init__(self, options: Any, service: Any, /) -> None:
        super().__init__(options, service)
        LastService.last = service


globals().update(with_another(__name__, LastService, "act", ACTS))


class OtherwiseRoutes(_Routes):
    """Answers with another name than the document says."""

    async def answer(self, request: Any, body: Items) -> Response:
        return json_response({"title": "x"})
