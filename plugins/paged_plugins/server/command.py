"""``paged-core serve``: a model as a service."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paged_core.cli import INTERRUPTED, OK
from paged_core.cli.logs import tell
from paged_core.cli.options import SettingsArgs
from paged_core.errors import SettingsError
from paged_core.settings.layers import Entry, Origin

if TYPE_CHECKING:
    from paged_core.client.engine_client import EngineClient
    from paged_core.settings.schema import Resolved
    from paged_plugins.server.server import Server
    from paged_plugins.server.service import Service

OBSERVERS = ("metrics", "live_view")
"""Observers of the engine if the settings name none, from which the server's pages report."""
_EXPORTER = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables of OpenTelemetry: with one of them the engine sends spans, too."""


def command(
    given: SettingsArgs,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at (127.0.0.1; 0.0.0.0: all).")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port (8000; 0: a free one).")] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What requests call the model; repeatable."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file with a key a line; requests need one of them.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Engines behind a --router (1), each with the whole model.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option(help="Where they run: process, or ray (of a cluster).")
    ] = None,
) -> int:
    """Serve a model over HTTP, as OpenAI does.

    These options are settings: `server.host`, `replicas.count` and so on, see --help-settings.
    SIGTERM and Ctrl-C let what runs finish; a second one stops at once.
    """
    options = {
        "--host": (("server", "host"), host),
        "--port": (("server", "port"), port),
        "--served-model-name": (("server", "served_model_name"), served_model_name or None),
        "--api-key-file": (("server", "api_key_file"), api_key_file),
        "--replicas": (("replicas", "count"), replicas),
        "--placement": (("replicas", "placement"), placement),
    }
    own = [
        Entry(path, value, Origin("cli", flag))
        for flag, (path, value) in options.items()
        if value is not None
    ]
    if any(entry.path[0] == "router" for entry in given.options):  # above one in a file
        own.append(Entry(("replicas", "router"), None, Origin("cli", "--router")))
    traced = any(given.environ.get(name) for name in _EXPORTER)
    observers = (*OBSERVERS, "spans") if traced else OBSERVERS
    below = [Entry(("observers",), observers, Origin("default", "paged-core serve"))]
    resolved = replace(given, options=[*given.options, *own]).resolve(below)
    chosen: Any = resolved.settings.server  # type: ignore[attr-defined]
    reason = resolved.registry.of("server")[chosen.name].unavailable_reason(chosen)
    if reason is not None:
        raise SettingsError(f"server {chosen.name!r} cannot run here: {reason}")
    return _run(resolved, chosen, given.log_level)


def _run(resolved: Resolved, chosen: Any, log_level: str | None) -> int:
    import asyncio

    from paged_core.plugins.making import make_component
    from paged_plugins.http_client import fastest_loop
    from paged_plugins.server.service import Service, with_served_name

    resolved = with_served_name(resolved, chosen)
    service = Service(_client(resolved, chosen, log_level), resolved, chosen)
    server: Server = make_component(resolved.registry, "server", chosen, service)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(_serve(server, service))


def _client(resolved: Resolved, chosen: Any, log_level: str | None) -> EngineClient:
    """Return what reaches the engines that serve."""
    from paged_core.client.choice import ClientContext, make_client

    settings, registry, hang_seconds = resolved.settings, resolved.registry, chosen.hang_timeout
    count = getattr(getattr(settings, "replicas", None), "count", 1)
    if chosen.engine == "thread" and count > 1:
        raise SettingsError(
            f"server.engine is thread, and replicas.count is {count}: several engines run in "
            "processes; leave server.engine out, or set replicas.count to 1"
        )

    def single() -> EngineClient:
        if chosen.engine == "thread":
            from paged_core.client.in_process import InProcessClient

            return InProcessClient(settings, registry)
        from paged_plugins.engine_process.client import ProcessClient

        return ProcessClient(settings, registry, hang_seconds=hang_seconds, log_level=log_level)

    context = ClientContext(
        settings=settings,
        registry=registry,
        single=single,
        hang_seconds=hang_seconds,
        log_level=log_level,
    )
    return make_client(context)


async def _serve(server: Server, service: Service) -> int:
    """Serve until a signal ends it; return the exit status."""
    import asyncio

    stop = _Stop()
    client = service.client
    await server.start()
    try:
        tell(f"{service.settings.model} is being loaded; {server.address} listens")
        starting = asyncio.create_task(client.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            stop.listen()  # libraries may have taken the signals for themselves, as Ray does
            tell(f"{', '.join(service.model_names)} is served at {server.address}")
            await stopping
            await _drain(service)
        starting.cancel()
    finally:
        await client.close()
        await server.close()
        service.close()
    return stop.status


async def _drain(service: Service) -> None:
    """Let what runs finish, for as long as the grace period is."""
    import asyncio

    service.is_stopping = True
    seconds = service.options.grace_period
    left = service.client.health().num_unfinished
    tell(f"stopping: {left} requests have {seconds:g} s to finish")
    try:
        async with asyncio.timeout(seconds):
            await service.client.drain()
    except TimeoutError:
        left = service.client.health().num_unfinished
        tell(f"{left} requests have not finished in time, and are ended")


class _Stop:
    """Waits for SIGTERM or Ctrl-C; the second one ends the process at once."""

    def __init__(self) -> None:
        import asyncio

        self.status = OK
        self._asked = asyncio.Event()
        self.listen()

    def listen(self) -> None:
        """Have the signals come here."""
        import asyncio

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask, number)

    async def wait(self) -> None:
        """Return when one has come."""
        await self._asked.wait()

    def _ask(self, number: int) -> None:
        if self._asked.is_set():
            os._exit(128 + number)
        self.status = INTERRUPTED if number == signal.SIGINT else OK
        self._asked.set()
