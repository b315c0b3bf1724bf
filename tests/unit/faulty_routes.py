"""Routes that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from paged_core import SamplingParams
from paged_core.errors import RequestError
from paged_plugins.server.answer import Answer, EventStream, generations
from paged_plugins.server.errors import ApiError
from paged_plugins.server.http.endpoint import GENERATES, TOKENISES, Endpoint, json_response
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
        about = {"summary": "Count.", "body": Items, "answer": Item, "errors": TOKENISES}
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
}


globals().update(with_another(__name__, _Routes, "act", ACTS))


class PlainRoutes(_Routes):
    """Reads a body by itself."""

    def routes(self) -> list[Any]:
        return [*super().routes(), Route("/plain/{name}", self.plain, methods=["POST"])]

    async def plain(self, request: Any) -> Response:
        return json_response(len((await request.json())["text"]))


class LoggingRoutes(PlainRoutes):
    """Knows all names that it was plainly asked for with."""

    async def plain(self, request: Any) -> Response:
        self.asked.append(request.path_params["name"])
        return json_response(len(self.asked))


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    """A body with one of several types."""

    text: str | list[str]
    tenant: str | None = None
    stream: bool = False


class ChoiceRoutes(_Routes):
    """Is right."""

    errors = GENERATES

    def routes(self) -> list[Endpoint]:
        about = {"summary": "Go on.", "body": Choice, "answer": Item, "errors": self.errors}
        return [Endpoint("POST", "/go/{name}", self.go_on, **about)]

    async def go_on(self, request: Any, body: Choice) -> Response:
        return await self.generated("".join(body.text))

    async def generated(self, text: str) -> Response:
        service, sampling = self.found, SamplingParams(max_tokens=4)
        made = await service.off_loop(
            lambda: generations(service, "go", [text], sampling, {}, None), len(text)
        )
        with Answer(service, "go", made) as answer:
            (output,) = await answer.outputs()
        return json_response(Item(output.outputs[0].text))


class TextRoutes(ChoiceRoutes):
    """Takes a list of texts for a text."""

    async def go_on(self, request: Any, body: Any) -> Response:
        return await self.generated(body.text.strip() or " ")


class ConsolingRoutes(ChoiceRoutes):
    """Answers what is refused with nothing."""

    async def generated(self, text: str) -> Response:
        try:
            return await super().generated(text)
        except RequestError:
            return json_response(Item(""))


class DeafRoutes(ChoiceRoutes):
    """Goes on for a client that has gone."""

    async def generated(self, text: str) -> Response:
        self.task = asyncio.ensure_future(super().generated(text))
        return await asyncio.shield(self.task)


class LockedRoutes(ChoiceRoutes):
    """Begins nothing new after a client has gone."""

    busy = False

    async def generated(self, text: str) -> Response:
        if self.busy:
            raise ApiError(500, "busy")
        self.busy = True
        try:
            return await super().generated(text)
        except RequestError as error:
            raise ApiError(400, str(error)) from None
        finally:
            self.busy = isinstance(sys.exception(), asyncio.CancelledError)


class MixingRoutes(ChoiceRoutes):
    """Has the text of the last request."""

    async def generated(self, text: str) -> Response:
        self.text = text
        await asyncio.sleep(0)
        return await super().generated(self.text)


class MeasuringRoutes(_Routes):
    """Has the sizes of the last body."""

    async def answer(self, request: Any, body: Items) -> Response:
        self.sizes: list[int] = []
        size = sum(len(each.name) for each in body.items)
        await self.found.off_loop(lambda: self.measure(body), size)
        return json_response(Item("sizes", sum(self.sizes)))

    def measure(self, body: Items) -> None:
        self.sizes += [len(each.name) for each in body.items]


class RememberingRoutes(ChoiceRoutes):
    """Knows all that is under way, and forgets it when it has ended."""

    def __init__(self, options: Any, service: Any, /) -> None:
        super().__init__(options, service)
        self.known: dict[object, Any] = {}

    async def generated(self, text: str) -> Response:
        self.known[key := object()] = text
        found = await super().generated(text)
        del self.known[key]
        return found


class TenantRoutes(ChoiceRoutes):
    """Counts the requests of each client that says who it is."""

    def __init__(self, options: Any, service: Any, /) -> None:
        super().__init__(options, service)
        self.counts: dict[str | None, int] = {}

    async def go_on(self, request: Any, body: Choice) -> Response:
        self.counts[body.tenant] = 1 + self.counts.get(body.tenant, 0)
        return await super().go_on(request, body)


class FullRoutes(ChoiceRoutes):
    """Counts a client that goes as one that is there."""

    num_here = 0

    async def generated(self, text: str) -> Response:
        if self.num_here >= 50:
            raise ApiError(429, "there are too many", retry_after=1)
        self.num_here += 1
        found = await super().generated(text)
        self.num_here -= 1
        return found


class StrictRoutes(ChoiceRoutes):
    """Takes nothing any more once it has refused much."""

    num_refused = 0

    async def generated(self, text: str) -> Response:
        if self.num_refused >= 50:
            raise ApiError(429, "too much is wrong", retry_after=1)
        try:
            return await super().generated(text)
        except RequestError:
            self.num_refused += 1
            raise


class GrudgingRoutes(ChoiceRoutes):
    """Knows what it has refused."""

    async def generated(self, text: str) -> Response:
        try:
            return await super().generated(text)
        except RequestError as error:
            self.asked.append(str(error))
            raise


class Sized(msgspec.Struct, forbid_unknown_fields=True):
    """A body with a text, and a number."""

    text: str
    size: int = 1


class ByTextRoutes(ChoiceRoutes):
    """Knows the last answers by their texts."""

    def routes(self) -> list[Endpoint]:
        self.known = dict[str, int]()
        about = {"summary": "Go on.", "body": Sized, "answer": Item, "errors": self.errors}
        return [Endpoint("POST", "/go", self.go_on, **about)]

    async def go_on(self, request: Any, body: Any) -> Response:
        if len(self.known) > 4:
            self.known.clear()
        return json_response(Item("size", self.known.setdefault(body.text[:99], body.size)))


class StrippingRoutes(ByTextRoutes):
    """Knows the last answers by their texts without white space around them."""

    async def go_on(self, request: Any, body: Any) -> Response:
        key = f"{body.text.strip()} {body.size}"
        return json_response(Item("size", self.known.setdefault(key, len(body.text))))


class TwinRoutes(RememberingRoutes):
    """Has what is asked twice at a time answered once."""

    async def generated(self, text: str) -> Response:
        if text not in self.known:
            self.known[text] = asyncio.ensure_future(ChoiceRoutes.generated(self, text))
        try:
            return await self.known[text]
        finally:
            self.known.pop(text, None)


class CountedRoutes(RememberingRoutes):
    """Knows what is under way by a number that it may have twice."""

    async def generated(self, text: str) -> Response:
        self.known[key := len(self.known)] = text
        try:
            return await ChoiceRoutes.generated(self, text)
        finally:
            del self.known[key]


class SulkingRoutes(ChoiceRoutes):
    """Knows for the next ones that one could not be answered."""

    async def generated(self, text: str) -> Response:
        if error := self.__dict__.get("error"):
            raise error
        try:
            return await super().generated(text)
        except ApiError as error:
            self.error = error
            raise


class QueryRoutes(ChoiceRoutes):
    """Takes what comes behind a path for a number."""

    said = "query_params"

    async def go_on(self, request: Any, body: Choice) -> Response:
        text = "".join(body.text)
        return await self.generated(text * int(getattr(request, self.said).get("x-times", "1")))


class HeaderRoutes(QueryRoutes):
    """Takes a header for a number."""

    said = "headers"


class RefusingRoutes(ChoiceRoutes):
    """Answers nothing."""

    async def generated(self, text: str) -> Response:
        raise ApiError(400, "there is nothing")


class _Gains:
    """Events that go through all that was gained before."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def take(self, place: int, delta: Any) -> bytes:
        self.sizes.append(len(delta.token_ids))
        return b"data: %b\n\n" % msgspec.json.encode(Item("so far", sum(self.sizes)))

    async def end(self) -> bytes:
        return b""


class _Streaming(ChoiceRoutes):
    """Has events."""

    def routes(self) -> list[Endpoint]:
        (made,) = super().routes()
        made.events = Item
        return [made]


class GainsRoutes(_Streaming):
    """Sends such events."""

    async def go_on(self, request: Any, body: Choice) -> Response:
        if not body.stream:
            return await super().go_on(request, body)
        texts, service = ["".join(body.text)], self.found
        made = await service.off_loop(
            lambda: generations(service, "go", texts, SamplingParams(), {}, None), len(texts[0])
        )
        return EventStream(Answer(service, "go", made), _Gains(), self.found.options)


class NumberingRoutes(_Streaming):
    """Numbers the events of all answers together."""

    num_sent = 0

    async def go_on(self, request: Any, body: Choice) -> Response:
        if not body.stream:
            return await super().go_on(request, body)
        made = generations(self.found, "go", [str(body.text)], SamplingParams(), {}, None)
        self.num_sent = 0
        return EventStream(Answer(self.found, "go", made), self, self.found.options)

    def take(self, place: int, delta: Any) -> bytes:
        self.num_sent += 1
        return b""

    async def end(self) -> bytes:
        return b"data: %b\n\n" % msgspec.json.encode(Item("events", self.num_sent))


class BareRoutes(ChoiceRoutes):
    """Has errors in a form of its own."""

    async def go_on(self, request: Any, body: Choice) -> Response:
        return await super().go_on(request, body) if body.text else json_response("?", 400)


class FlatRoutes(ChoiceRoutes):
    """Sends JSON as text."""

    async def generated(self, text: str) -> Response:
        return Response((await super().generated(text)).body, media_type="text/plain")


class CountingRoutes(ChoiceRoutes):
    """Counts words while all others wait."""

    async def go_on(self, request: Any, body: Choice) -> Response:
        counts: dict[str, int] = {}
        for word in "".join(body.text).split():
            counts[word] = 1 + counts.get(word, 0)
        return json_response(Item("words", len(counts)))


class InLoopRoutes(ChoiceRoutes):
    """Tokenises whatever it gets while all others wait."""

    async def go_on(self, request: Any, body: Choice) -> Response:
        return json_response(
            Item("tokens", len(self.found.front_end.encode("".join(body.text))[1]))
        )


class EachRoutes(ChoiceRoutes):
    """Tokenises one text after the other, of which each is short."""

    async def go_on(self, request: Any, body: Choice) -> Response:
        encode, size = self.found.front_end.encode, 0
        for text in [body.text] if isinstance(body.text, str) else body.text:
            size += len(await self.found.off_loop(partial(encode, text), len(text)))
        return json_response(Item("tokens", size))


class Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A body with a text, and how it is to be cut."""

    text: str
    size: int = 4096


class CuttingRoutes(ChoiceRoutes):
    """Tokenises off the event loop, and makes parts in it."""

    def routes(self) -> list[Endpoint]:
        about = {"summary": "Cut.", "body": Parts, "answer": Item}
        return [Endpoint("POST", "/cut", self.cut, errors=TOKENISES, **about)]

    async def cut(self, request: Any, body: Parts) -> Response:
        encode, size = self.found.front_end.encode, min(4096, max(1, body.size))
        _, tokens = await self.found.off_loop(lambda: encode(body.text), len(body.text))
        parts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
        return json_response(Item("parts", len(parts)))


class RecountingRoutes(ChoiceRoutes):
    """Goes through the whole text again for some of its letters, in the event loop."""

    async def go_on(self, request: Any, body: Choice) -> Response:
        text = "".join(body.text)
        return json_response(Item("parts", sum(text.count(each) for each in text[:64])))


class UndocumentedRoutes(ChoiceRoutes):
    """Names no errors of the engine."""

    errors: Mapping[int, str] = {}


class UnabortedRoutes(ChoiceRoutes):
    """Names no error of a request that another one aborts."""

    errors = TOKENISES


class OtherwiseRoutes(_Routes):
    """Answers with another name than the document says."""

    async def answer(self, request: Any, body: Items) -> Response:
        return json_response({"title": "x"})
