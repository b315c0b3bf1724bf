"""The conformance class of routes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Container, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from inspect import getsource
from itertools import chain, product
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from starlette.routing import BaseRoute, Route

from paged_plugins.server.http.endpoint import EVENTS, Endpoint, openapi
from paged_plugins.server.http.own_routes import OwnRoutes
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.testing.bodies import (
    MANY,
    NUMBER,
    TEXT,
    bodies_of,
    filled,
    forms_of,
    is_stream,
    paths_of,
    refused_by,
    usual_body,
)
from paged_plugins.server.testing.services import (
    Answered,
    WatchedService,
    ask,
    check_loops,
    serving,
)
from paged_testing.component import ComponentConformance
from paged_testing.use import instructions, waits_watched
from paged_testing.work import Work

_BODIES: tuple[Any, ...] = (
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
_LINES = "a b\n" * 100
_LIKE_TEXT = (TEXT, f" {TEXT} ", TEXT.upper(), *(f"{TEXT * 400}{end}" for end in (1, 2, 34)))
"""Texts that are alike, and not the same."""
_MOST_LONG = 16
"""Bodies with a long text that are tried."""
_NOT_READY = ("starts", "ends", "is full", "aborts")
"""States in which requests are not served."""
_CHANCE = re.compile(rb'"\w*id":"[^"]*"|\d+\.\d+|[a-z]*[-_]?[\da-f-]{8,}')
"""Times and ids, which differ in answers that are alike."""
_MANY = 100
"""Clients that go at a time."""
_SOME, _MOST_ALIKE = 4, 40
"""Tokens that are generated at most where bodies differ in a field, and how many such bodies."""
_LENGTHS = 32, 512
"""Tokens of an answer whose events are counted."""
_MOST_BODIES = 300
"""Bodies of a route that are tried."""
_SECONDS_OF_A_STREAM = 0.1


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

    def run(
        self, test: Callable[[WatchedService, Routes], Coroutine[Any, Any, None]], **values: Any
    ) -> None:
        """Run a test with a service of some settings."""

        async def main() -> None:
            async with serving(self.registry, **values) as service:
                await test(service, self.make(service))

        asyncio.run(main())

    # ------------------------------------------------------------------ written cases

    def test_paths_are_its_own(self) -> None:
        """None is there twice, or is one of the server's; the document has those of endpoints."""

        async def test(service: WatchedService, routes: Routes) -> None:
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
            document = openapi(made, has_keys=True, public=())
            shown = {re.sub(r":\w+}", "}", e.path) for e in made if isinstance(e, Endpoint)}
            assert set(document["paths"]) == shown

        self.run(test)

    def test_unexpected_requests_are_answered_as_the_document_says(self) -> None:
        """With no status of 500, and none that is not documented; nothing waits meanwhile."""

        async def check(
            service: WatchedService, made: list[Route], route: Route, query: bytes
        ) -> None:
            is_plain, streams, answers = not isinstance(route, Endpoint), False, False
            usual = usual_body(route, service)
            for method, path in product(_methods(route), paths_of(route)):
                bodies = [None] if method == "GET" else [None, *_BODIES]
                if isinstance(route, Endpoint) and route.body:
                    known = bodies_of(route.body, service)
                    bodies += Random(0).sample(known, min(len(known), _MOST_BODIES))
                tried = [(usual, query), *((body, b"") for body in bodies)]
                for body, service.query in tried:
                    refused = service.num_refused
                    # a plain route may be a stream without an end
                    until = partial(asyncio.sleep, _SECONDS_OF_A_STREAM) if is_plain else None
                    found = await ask(service, made, method, path, body, until=until)
                    said = f"{method} {path} answers {_short(body)} with {found.status}"
                    streams, answers = streams or is_stream(found), answers or found.status == 200
                    if isinstance(route, Endpoint):
                        _check_answer(found, route, said)
                    assert found.status != 200 or service.num_refused == refused, (
                        f"{said}, though the engine refuses the request: let what it raises pass"
                    )
            if isinstance(route, Endpoint) and route.events and not streams:
                path = paths_of(route)[0]
                answered = (await ask(service, made, route.method, path, usual)).status == 200
                assert not answered or len(await forms_of(service, route)) > 2, (
                    f"{route.path} says what its events are, and answers no body with events"
                )
            if isinstance(route, Endpoint) and route.body:
                assert answers, (
                    f"{route.path} answers no body that the tests make: give its fields values "
                    "that it answers, as by msgspec.Meta(examples=[...])"
                )
                body = {**usual, "no such field": 1}
                found = await ask(service, made, route.method, paths_of(route)[0], body)
                assert found.status == 400, (
                    f"{route.path} answers a body with a field that it does not know with "
                    f"{found.status}: declare it with forbid_unknown_fields=True"
                )

        async def test(service: WatchedService, routes: Routes) -> None:
            made = [each for each in routes.routes() if isinstance(each, Route)]
            text = getsource(sys.modules[type(routes).__module__])
            names = sorted({*re.findall(r"[\"']([\w-]+)[\"']", text)})
            query = "&".join(f"{name}=word" for name in names).encode()
            with waits_watched(self.package, "every request", in_coroutines=True):
                for route in made:
                    await check(service, made, route, query)
            assert not service.client.is_busy, "a request was left behind"

        self.run(test)

    def test_requests_at_once_are_answered_as_each_alone(self) -> None:
        """Some that are alike, and some with another text, of few fields or many, and as events;
        also where a thread takes each. Texts with numbers, and long ones, may be other ids."""

        async def test(service: WatchedService, routes: Routes) -> None:
            check_loops(self.package)
            made, service.client.front_end.longest = _endpoints(routes), 1
            texts = ("one", "and another") * 6
            forms = await _forms(service, routes)
            for (route, form), service.takes_thread in product(forms, (False, True)):
                asked = [filled(form, text, 0) for text in texts]
                await self.check_as_alone(service, made, route, asked)

        self.run(test)

    def test_answers_go_by_all_that_is_in_a_body(self) -> None:
        """Ones that differ in a field are asked one after the other, and then at once."""

        async def test(service: WatchedService, routes: Routes) -> None:
            made, service.client.front_end.longest = _endpoints(routes), _SOME
            for route in (each for each in made if each.body):
                needed, *others = bodies_of(route.body, service, TEXT, NUMBER)
                drawn = Random(1).sample(others, min(len(others), _MOST_ALIKE))
                forms = [json.dumps(each) for each in (needed, *drawn)]
                alike = [filled(forms[0], text, 0) for text in _LIKE_TEXT]
                bodies = [*alike, *(filled(each, TEXT, 0) for each in forms)]
                others = [*alike, *(filled(each, "another", 0) for each in forms)]
                for body in dict.fromkeys(bodies):
                    await ask(service, made, route.method, paths_of(route)[0], body)
                for some in (slice(at, at + 4) for at in range(0, len(bodies), 4)):
                    mixed = chain(*zip(bodies[some], others[some], strict=True))
                    await self.check_as_alone(service, made, route, [*mixed])

        self.run(test, block_size=4096, max_model_len=1 << 14)  # for long texts, too

    async def check_as_alone(
        self,
        service: WatchedService,
        made: Sequence[BaseRoute],
        route: Endpoint,
        bodies: Sequence[bytes | None],
    ) -> None:
        """Check that bodies are answered at once as each is by a component of its own."""

        async def answer(body: bytes | None, of: Sequence[BaseRoute]) -> tuple[int, bytes]:
            found = await ask(service, of, route.method, paths_of(route)[0], body)
            is_cut = is_stream(found) and service.client.front_end.longest != 1  # by chance
            return found.status, b"" if is_cut else _CHANCE.sub(b"#", found.content)

        alone = {
            body: [await answer(body, _endpoints(self.make(service))) for _ in range(2)]
            for body in dict.fromkeys(bodies)
        }
        room = asyncio.Semaphore(len(bodies) // 2 + 1)  # some begin when others end

        async def beside_others(body: bytes | None) -> tuple[int, bytes]:
            async with room:
                return await answer(body, made)

        together = await asyncio.gather(*map(beside_others, bodies))
        for body, beside in zip(bodies, together, strict=True):
            one, other = alone[body]
            same = beside == one if one == other else beside[0] == one[0]
            assert same, (
                f"{route.method} {paths_of(route)[0]} answers {_short(body)} with {beside} beside "
                f"others and after them, alone with {one}: keep what is of one request in its "
                "call, and what is known of others by all that is in their bodies"
            )

    def test_leaves_nothing_behind_when_a_client_goes_or_is_refused(self) -> None:
        async def test(service: WatchedService, routes: Routes) -> None:
            forms = await _forms(service, routes)
            before = await _statuses(service, forms)
            for route in _endpoints(routes):
                refused = (await refused_by(service, route))[:_SOME]
                for form, number in product(refused, range(_MANY)):
                    body = filled(form, TEXT, number)
                    await ask(service, [route], route.method, paths_of(route)[0], body)
            await self.leave(service, forms, times=_MANY)
            await self.leave(service, forms, times=_MANY, late=False)
            assert not service.client.is_busy, (
                "the client of a request has gone, and the engine goes on with it: use an Answer "
                "in a `with` block, in the task that answers"
            )
            after = await _statuses(service, forms)
            assert after == before, (
                f"the statuses of answers are {before}, and {after} after many bodies were refused "
                "for each of several reasons, and many clients have gone"
            )
            service.client.is_slow, until = True, partial(_busy, service)
            for (route, form), status in zip(forms, before, strict=True):
                body, of = filled(form, "of two", 0), (service, [route], route.method)
                calls = (ask(*of, paths_of(route)[0], body, until=each) for each in (until, None))
                _, found = await asyncio.gather(*calls, return_exceptions=True)
                assert isinstance(found, Answered) and found.status == status, (
                    f"{route.path} answers {_short(body)} with {status}, and if another client "
                    f"goes that asked the same: {found}"
                )

        self.run(test)

    def test_what_is_long_is_not_done_in_the_event_loop(self) -> None:
        """Its thread tokenises no long text and makes no steps for the words, lines or tokens of
        one, with other numbers in the body, too; what code of C does with it takes little time. Nor
        does it tokenise many short texts."""
        assert all(self.costs(_LINES * 10, (MANY,)))
        for few, many in zip(*map(self.costs, (_LINES, _LINES * 100)), strict=True):
            for what, most in (("instructions", 100), ("items of built-ins", 3200)):
                assert many[what] <= few[what] + most * len(_LINES), (
                    f"{many['said']} takes {few[what]} {what} in the event loop with a text of "
                    f"{len(_LINES)} letters, {many[what]} with one 100 times as long: await "
                    "service.off_loop or asyncio.to_thread"
                )

    def test_an_event_takes_as_long_after_many_others(self) -> None:
        with self.in_loop() as (runner, service):
            service.client.is_slow = True  # or several tokens are one event, by chance
            for route in (each for each in _endpoints(self.make(service)) if each.body):
                forms = runner.run(forms_of(service, route))
                needed, _, *events = (json.loads(each or "") for each in forms)
                for form in ({**needed, [*each][-1]: True} for each in events):
                    few, many = (self.cost(runner, service, route, form, n) for n in _LENGTHS)
                    assert many <= 1.5 * few + 40, (
                        f"{route.path}, sent {_short(form)}, takes {few:.0f} instructions in the "
                        f"event loop for each event of {_LENGTHS[0]} tokens, {many:.0f} of "
                        f"{_LENGTHS[1]}: none may go through those before it"
                    )

    def cost(
        self,
        runner: asyncio.Runner,
        service: WatchedService,
        route: Endpoint,
        body: Any,
        longest: int,
    ) -> float:
        """Return the instructions for an event of an answer of so many tokens."""
        service.client.front_end.longest, path = longest, paths_of(route)[0]
        answer, found = ask(service, [route], route.method, path, body), []

        async def keep() -> None:
            found.append(await answer)

        taken = instructions(partial(runner.run, keep()), self.package)
        return taken / max(1, found[0].content.count(b"data:"))

    @contextmanager
    def in_loop(self) -> Iterator[tuple[asyncio.Runner, WatchedService]]:
        """Yield what runs coroutines in one event loop, and a service of large answers there."""
        with asyncio.Runner() as runner, ExitStack() as stack:
            serves = serving(self.registry, block_size=4096, max_model_len=1 << 17)
            service = runner.run(serves.__aenter__())
            service.client.front_end.longest = 16
            stack.callback(lambda: runner.run(serves.__aexit__(None, None, None)))
            yield runner, service

    def costs(self, text: str, times: Container[int] = (1, 2, 3)) -> Iterator[dict[str, Any]]:
        """Yield what bodies that have a text so many times cost in the event loop."""
        with self.in_loop() as (runner, service):
            for route in (each for each in _endpoints(self.make(service)) if each.body):
                bodies = [usual_body(route, service, text), *bodies_of(route.body, service, text)]
                for body in [each for each in bodies if _count(text, each) in times][:_MOST_LONG]:
                    path = paths_of(route)[0]
                    calls = (ask(service, [route], route.method, path, body) for _ in range(2))
                    runner.run(next(calls))  # what is made once is made now
                    before, service.client.tokenizer.num_in_loop = Work.items, 0
                    steps = instructions(partial(runner.run, next(calls)), self.package)
                    items = Work.items - before
                    words = json.dumps(body).replace(json.dumps(text), '"..."')
                    said = f"{route.path}, sent {words[:300]},"
                    assert service.client.tokenizer.num_in_loop < 100 * len(_LINES), (
                        f"{said} tokenises what is long in the event loop: await service.off_loop, "
                        "once for all texts of a body"
                    )
                    yield {"said": said, "instructions": steps - items, "items of built-ins": items}

    @pytest.mark.parametrize("when", _NOT_READY)
    def test_what_takes_no_requests_is_answered_as_the_document_says(self, when: str) -> None:
        """By each endpoint that needs the engine, or whose request is aborted."""

        async def statuses(*states: str) -> list[tuple[int, str]]:
            answers = list[tuple[int, str]]()
            async with serving(self.registry, start="starts" not in states) as service:
                made = _endpoints(self.make(service))
                for when, route, text in product(states, made, ("text", _LINES * 20)):
                    service.is_stopping, service.is_full = when == "ends", when == "is full"
                    service.client.aborts = when == "aborts"
                    path, body = paths_of(route)[0], usual_body(route, service, text)
                    found = await ask(service, made, route.method, path, body)
                    said = (
                        f"while the engine {when}, {route.method} {path} answers {_short(body)} "
                        f"with {found.status}"
                    )
                    _check_answer(found, route, said)
                    answers.append((found.status, said))
            return answers

        states = (when, "serves again") if when != "starts" else (when,)
        usual, others = (asyncio.run(statuses(*each)) for each in (("serves",), states))
        for (status, _), (other, said) in zip(usual, others[len(usual) :], strict=False):
            assert other == status, f"{said}, and at first with {status}: keep no failures"
        for (status, _), (other, said) in zip(usual, others, strict=False):
            assert status >= 400 or other not in (400, 404, 422), (
                f"{said}, and otherwise with {status}: nothing is wrong with the request, so let "
                "ApiError and EngineError pass"
            )

    async def leave(
        self,
        service: WatchedService,
        forms: Sequence[_Form],
        text: str = "text",
        *,
        times: int = 1,
        late: bool = True,
    ) -> None:
        """Send each form, and go as soon as the engine has the request, or at once."""
        until, service.client.is_held = partial(_busy, service, late=late), True
        for route, form in forms:
            texts = (f"{text} {number}" for number in range(times))  # none was answered before
            bodies = ((form or "").replace(TEXT, each, 1).encode() or None for each in texts)
            path = paths_of(route)[0]
            gone = (ask(service, [route], route.method, path, body, until=until) for body in bodies)
            await asyncio.gather(*gone)
        await asyncio.sleep(0)
        service.client.is_held = False

    num_uses: ClassVar[int] = 16
    _open: AsyncExitStack | None = None
    """Ends the service of the uses."""

    def uses(self) -> Callable[[int], object]:
        """Each path is asked once more, with all that it takes, and by a client that goes."""
        loop, stack = asyncio.new_event_loop(), AsyncExitStack()
        service = loop.run_until_complete(stack.enter_async_context(serving(self.registry)))
        routes, self._open = self.make(service), stack
        if self._request is not None:
            self._request.addfinalizer(loop.close)
            self._request.addfinalizer(lambda: loop.run_until_complete(stack.aclose()))

        service.client.front_end.longest = 1
        made, every = _endpoints(routes), routes.routes()
        plain = [e for e in every if isinstance(e, Route) and not isinstance(e, Endpoint)]
        answered = loop.run_until_complete(_forms(service, routes))
        forms = [*answered, *loop.run_until_complete(_forms(service, routes, refused_by))]

        async def use(number: int) -> None:
            text = f"{number:09}" * 12
            for route, form in forms:
                path = paths_of(route, (text,))[0]
                body = filled(form, text, number)
                await ask(service, made, route.method, path, body)
            until = partial(asyncio.sleep, 0.002)  # it may be a stream without an end
            for each in plain:
                for method in _methods(each):
                    path = paths_of(each, (text,))[0]
                    await ask(service, plain, method, path, {"text": text}, until=until)
            await self.leave(service, answered, text)
            await service.client.metrics()  # the engine has done all before it answers

        return lambda number: loop.run_until_complete(use(number))


_Form = tuple[Endpoint, str | None]
"""An endpoint, and the form of a body."""


async def _forms(service: WatchedService, routes: Routes, of: Any = forms_of) -> list[_Form]:
    """Return forms that endpoints answer, or refuse."""
    return [(each, form) for each in _endpoints(routes) for form in await of(service, each)]


async def _statuses(service: WatchedService, forms: Sequence[_Form]) -> list[int]:
    """Return the statuses of answers to forms."""
    return [
        (await ask(service, [each], each.method, paths_of(each)[0], filled(form, TEXT, 0))).status
        for each, form in forms
    ]


async def _busy(service: WatchedService, *, late: bool = True) -> None:
    """Wait until the engine has a request."""
    for _ in range(100 if late else 0):
        if service.client.is_busy:
            return
        await asyncio.sleep(0.002)


def _endpoints(routes: Routes) -> list[Endpoint]:
    return [each for each in routes.routes() if isinstance(each, Endpoint)]


def _methods(route: Route) -> list[str]:
    return sorted({*(route.methods or ())} - {"HEAD"})


def _count(text: str, body: Any) -> int:
    """Return how often a text is in a body."""
    return json.dumps(body).count(json.dumps(text))


def _short(body: Any) -> str:
    return repr(body)[:300]


def _check_answer(found: Answered, route: Endpoint, said: str) -> None:
    """Check an answer against the document."""
    assert found.status == 200 or found.status in route.errors, (
        f"{said}, which the `errors` of the endpoint do not name: GENERATES and TOKENISES of "
        "paged_plugins.server.http.endpoint have those of engines"
    )
    media, kind = "application/json", route.answer if found.status == 200 else route.error
    parts = [found.content]
    if is_stream(found):
        assert route.events is not None, f"{said} and events, but the endpoint has no `events`"
        media, kind = EVENTS, route.events
        events = re.sub(rb"^event: error\n.*\n", b"", found.content, flags=re.MULTILINE)
        parts = re.findall(rb"^data: (?!\[DONE\])(.*)", events, re.MULTILINE)
    elif isinstance(kind, str):
        media, parts = kind, []
    given = found.headers.get("content-type", "none")
    assert given.startswith(media), f"{said} and the media type {given!r}, not {media!r}"
    values = found.headers.values()
    assert not re.search(r"[\0\r\n]", "".join(values)), f"{said} and a broken header: {values}"
    for part in parts:
        try:
            msgspec.json.decode(part, type=kind)
        except msgspec.MsgspecError as error:
            raise AssertionError(
                f"{said} and {part[:200]!r}, which is not as the document says: {error}"
            ) from None
