"""The routes of the page: its files, the stream that feeds it, and what is in force."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from paged_core.cli.config import names_of
from paged_core.cli.plugins import choices
from paged_core.client.engine_client import ClientState, EngineClient
from paged_core.errors import PagedCoreError
from paged_plugins.server.errors import ApiError
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import PageSettings

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a browser asks whether its copy is still this one
}


class PageFile:
    """One file, read once."""

    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        self._headers = {
            **HEADERS,
            "Content-Type": TYPES[path.suffix],
            "ETag": f'"{sha256(self._content).hexdigest()[:32]}"',
        }

    async def answer(self, request: Request) -> Response:
        """Answer with the file, or say that the browser's copy is the same."""
        if self._headers["ETag"] in request.headers.get("If-None-Match", ""):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


def page_files() -> dict[str, PageFile]:
    """Return the files of the page, by their names."""
    return {path.name: PageFile(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


OBSERVER = "live_view"
PERIOD = 0.1
"""Seconds between two questions, at least."""
SHARE = 0.02
"""Share of the engine's time that answers may take: long ones are asked for less often."""
PATIENCE = 3.0
"""Seconds after which an engine that does not answer is said to be silent."""
PING = 15.0
"""Seconds without news after which a comment shows that the connection lives."""

ENDS = {ClientState.DRAINING.value, ClientState.FAILED.value}
"""States after which a stream ends: a server that closes waits for what is open."""

State = tuple[str, str | None]
"""State of the engine, and the reason if it takes no requests, or if there is no view."""


class Update(NamedTuple):
    """News for viewers who have seen everything up to a cursor."""

    cursor: int
    state: State
    event: bytes
    """The server-sent event."""


class LiveFeed:
    """Asks an engine's ``live_view`` for what is new, once for all who have seen the same.

    Who reads slowly has an older cursor, and gets more at a time; so does who comes back with the
    cursor of the last event.

    Args:
        engine: of those behind the client, the one that is asked; ``None``: there is one.
    """

    def __init__(
        self, client: EngineClient, *, engine: int | None = None, period: float = PERIOD
    ) -> None:
        self._client, self._period = client, period
        self._engine = engine
        self._observer = OBSERVER if engine is None else f"{OBSERVER}@{engine}"
        self._num_viewers = 0
        self._asked: dict[tuple[int, State | None], asyncio.Future[Update]] = {}
        """By what viewers have seen: what they wait for."""
        self._poller: asyncio.Task[None] | None = None

    async def events(self, since: int = 0) -> AsyncIterator[bytes]:
        """Yield what is new since a cursor, as server-sent events, until the engine ends."""
        state: State | None = None
        self._num_viewers += 1
        try:
            while state is None or state[0] not in ENDS:
                waiting = asyncio.shield(self._ask_for(since, state))
                try:
                    update = await asyncio.wait_for(waiting, PING)
                except TimeoutError:
                    yield b": ping\n\n"
                    continue
                since, state = update.cursor, update.state
                yield update.event
        finally:
            self._num_viewers -= 1

    def _ask_for(self, since: int, state: State | None) -> asyncio.Future[Update]:
        loop = asyncio.get_running_loop()
        if self._poller is None:
            self._poller = loop.create_task(self._poll())
        return self._asked.setdefault((since, state), loop.create_future())

    async def _poll(self) -> None:
        try:
            while self._num_viewers:
                pause = self._period
                for seen, waiting in list(self._asked.items()):
                    update, took = await self._look(seen[0])
                    pause = max(pause, took / SHARE)
                    if (update.cursor, update.state) != seen:
                        del self._asked[seen]
                        waiting.set_result(update)
                await asyncio.sleep(pause)
        except Exception as error:  # noqa: BLE001 - all who look are told, and can come back
            for waiting in self._asked.values():
                waiting.set_exception(error)
        finally:
            self._poller = None
            self._asked.clear()

    async def _look(self, since: int) -> tuple[Update, float]:
        """Return what is new, and the seconds that this took the engine."""
        view: dict[str, Any] | None = None
        problem: str | None = None
        try:
            view = await asyncio.wait_for(self._client.report(self._observer, since), PATIENCE)
        except TimeoutError:
            problem = "the engine does not answer; it may be in a long step"
        except PagedCoreError as error:
            problem = str(error)
        health = self._client.health()
        state = (health.state.value, health.reason or problem)
        cursor = since if view is None else view["cursor"]
        told: dict[str, Any] = {"state": state[0], "reason": state[1], "view": view}
        if self._engine is not None:
            told |= {"number": self._engine, "engines": health.num_engines}
        data = msgspec.json.encode(told)
        event = b"id: %d\ndata: %b\n\n" % (cursor, data)
        return Update(cursor, state, event), 0.0 if view is None else view["took"]


class Page(Routes):
    """Serves the page at ``/``, and to it ``/live/events`` and ``/live/about``."""

    def __init__(self, options: PageSettings, service: Service, /) -> None:
        self._service = service
        self._feeds: dict[int | None, LiveFeed] = {}

    def routes(self) -> Sequence[BaseRoute]:
        files = page_files()
        return [
            Route("/", files["index.html"].answer, methods=["GET"], include_in_schema=False),
            *(
                Route(f"/page/{name}", file.answer, methods=["GET"], include_in_schema=False)
                for name, file in files.items()
            ),
            Route("/live/events", self.events, methods=["GET"], include_in_schema=False),
            Route("/live/about", self.about, methods=["GET"], include_in_schema=False),
        ]

    async def events(self, request: Request) -> Response:
        """Stream differences, from the cursor of the last event on that a viewer has had.

        Of several engines the parameter ``engine`` names one; without it, the first.
        """
        client, engine = self._service.client, self._engine(request)
        feed = self._feeds.setdefault(engine, LiveFeed(client, engine=engine))
        given = request.headers.get("Last-Event-ID", "")
        since = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
        return StreamingResponse(
            feed.events(since),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def about(self, request: Request) -> Response:
        """Answer with the settings in force, where each is from, and what is installed."""
        self._engine(request)
        service = self._service
        plugins = [
            {
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "status": plugin.status,
                "reason": plugin.reason,
            }
            for plugin in service.registry.plugins
        ]
        components = [
            {
                "slot": choice.slot,
                "name": choice.name,
                "plugin": choice.plugin.name,
                "summary": choice.summary,
            }
            for choice in choices(service.registry)
        ]
        body = {
            "models": list(service.model_names),
            "settings": list(self._settings()),
            "plugins": plugins,
            "components": components,
        }
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    def _engine(self, request: Request) -> int | None:
        """Return which engine is asked about; ``None``: there is one.

        Raises:
            ApiError: there is none of this number.
        """
        asked = request.query_params.get("engine", "0")
        known = [str(number) for number in range(self._service.client.health().num_engines)]
        if asked not in known:
            there = f"there are 0 to {len(known) - 1}" if len(known) > 1 else "there is 0 alone"
            message = f"engine: no replica is called {asked!r}; {there}"
            raise ApiError(404, message, param="engine", code="replica_not_found")
        return known.index(asked) if len(known) > 1 else None

    def _settings(self) -> Iterator[dict[str, Any]]:
        settings = self._service.settings.model_dump(mode="json")
        for key, origin in self._service.origins.items():
            slot, _, option = key.partition(".")
            value = settings[slot][option] if option else settings[slot]
            where = "" if origin.layer == "default" else str(origin)
            text = value if isinstance(value, str) else names_of(value) or json.dumps(value)
            yield {"key": key, "value": text, "layer": origin.layer, "from": where}
