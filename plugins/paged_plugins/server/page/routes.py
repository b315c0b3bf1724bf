"""The routes of the page: its files, the stream that feeds it, and what is in force."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from paged_core.cli.config import names_of
from paged_core.cli.plugins import choices
from paged_plugins.server.errors import ApiError
from paged_plugins.server.page.feed import LiveFeed
from paged_plugins.server.page.files import page_files
from paged_plugins.server.routes import Routes
from paged_plugins.server.service import Service
from paged_plugins.server.settings import PageSettings


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
