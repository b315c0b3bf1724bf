"""A client of several engines: it starts them, routes requests, and serves again what one loses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from paged_core.client.choice import ClientContext
from paged_core.client.engine_client import ClientHealth, ClientState, EngineClient, OutputStream
from paged_core.client.streams import CopiedStream
from paged_core.engine.clock import SystemClock
from paged_core.engine.contexts import make_component
from paged_core.engine.outcome import EngineMetrics
from paged_core.errors import EngineError, EngineLost, PagedCoreError, RequestError
from paged_core.log import get_logger
from paged_core.request import Request
from paged_core.text.front_end import FrontEnd
from paged_core.text.generation import Generation
from paged_plugins.engine_process.backoff import Backoff
from paged_plugins.engine_process.client import ProcessClient, distant_front_end
from paged_plugins.replicas.block_feed import BlockFeed
from paged_plugins.replicas.engine_settings import engine_settings, router_options
from paged_plugins.replicas.merging import merge_reports, sum_metrics
from paged_plugins.replicas.replica import Replica
from paged_plugins.replicas.replicas import ReplicaHealth, Replicas
from paged_plugins.replicas.settings import RoutedSettings
from paged_plugins.routing.checked_router import CheckedRouter
from paged_plugins.routing.load_book import LoadBook
from paged_plugins.routing.router import RouterContext

_TOGETHER_SECONDS = 0.1
"""Engines that are lost within so long are lost together: what one had does not go to the other."""
_COUNT_SECONDS = 0.1
"""How often the tokens of answers are counted for the loads, at most."""
_REPORT_SECONDS = 3.0
"""That an engine may take to report among others; one that takes longer is left out."""

_log = get_logger()


def make_replicas(options: RoutedSettings, context: ClientContext, /) -> EngineClient:
    """Return the client of several engines; of a single one here, what its caller would have."""
    if options.count == 1 and options.placement == "process" and not options.devices:
        return context.single()
    return RoutedClient(options, context)


class RoutedClient(Replicas):
    """Engines in processes, or in actors of Ray, and a router that chooses between them.

    It takes requests as soon as one engine does. One that is lost is started again, with pauses
    that grow; what nothing was read of is served by another one at once, and what was read of ends
    with ``EngineLost``. Each request is given to two engines at most.

    Raises:
        SettingsError, PluginError: the router or the place of the engines cannot be used.
    """

    front_end: FrontEnd

    def __init__(self, options: RoutedSettings, context: ClientContext, /) -> None:
        self.clock = SystemClock()
        self._options, self._context = options, context
        chosen = router_options(options, context)
        self._settings = context.settings
        router = make_component(
            context.registry,
            "router",
            chosen,
            RouterContext(block_size=self._settings.block_size, seed=self._settings.seed),
        )
        self._router = CheckedRouter(router, chosen.name)
        self._book = LoadBook(self._router)
        self._replicas = [
            Replica(number, self._ended, self._lost) for number in range(options.count)
        ]
        self._state, self._reason = ClientState.STARTING, None
        self._starting: asyncio.Future[None] | None = None
        self._preparing = asyncio.Lock()
        self._streams: dict[str, CopiedStream] = {}
        """Those that have not ended, by the id of the request."""
        self._homeless: list[CopiedStream] = []
        """Those of them that no engine serves at the moment."""
        self._counted_at = 0.0
        self._changed = asyncio.Event()
        """Set when a request has ended, or a replica has changed."""
        self._pins: dict[str, list[tuple[ProcessClient, str]]] = {}
        self._num_pins = 0

    _state: ClientState
    _reason: str | None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_first())
        await asyncio.shield(self._starting)

    async def _start_first(self) -> None:
        """Start the engines, and return when the first one takes requests.

        Unless the settings say how many blocks there are, the first one measures, and the others
        have as many.
        """
        measures = self._settings.num_blocks is None
        begun = self._replicas[: 1 if measures else None]
        try:
            for replica in begun:
                self._keep_up(replica)
            while not any(replica.is_ready for replica in begun):
                if all(replica.reason for replica in begun):
                    raise next(each.failure for each in begun if each.failure is not None)
                await self._change()
        except BaseException as error:
            self._state, self._reason = ClientState.FAILED, str(error)
            await self._end_replicas()
            raise
        for replica in self._replicas[len(begun) :]:
            self._keep_up(replica)
        self._state = ClientState.READY

    def _keep_up(self, replica: Replica) -> None:
        replica.keeper = asyncio.create_task(self._keep(replica))

    async def _keep(self, replica: Replica) -> None:
        """Start the engine of a replica, and another whenever it is lost, until that is in vain."""
        backoff = Backoff()
        while True:
            client = replica.client = self._make_client(replica)
            replica.failure = None
            try:
                await client.start()
                await self._prepare(client)
            except PagedCoreError as error:
                await client.close()
                _log.error("replica_not_started", replica=replica.number, reason=str(error))
                replica.be(ClientState.RESTARTING, str(error), error)
            else:
                backoff.is_ready()
                self._join(replica)
                await replica.leaves.wait()
            pause = backoff.pause()
            if pause is None:
                self._give_up(replica)
                return
            await asyncio.sleep(pause)

    def _make_client(self, replica: Replica) -> ProcessClient:
        settings = engine_settings(
            self._settings, self._options, replica.number, self._router.wants_block_events
        )
        context = self._context
        launch: dict[str, Any] = {}
        if self._options.placement == "ray":
            from paged_plugins.replicas.ray_engine import launcher

            launch = {"launch": launcher(replica.number)}
        return ProcessClient(
            settings,
            context.registry,
            hang_seconds=context.hang_seconds,
            log_level=context.log_level,
            owner=replica,
            **launch,
        )

    async def _prepare(self, client: ProcessClient) -> None:
        """Make what the first engine that is ready allows to make."""
        async with self._preparing:
            if hasattr(self, "front_end"):
                return
            sizes = client.settings
            self._settings = self._settings.model_copy(
                update={
                    name: getattr(sizes, name)
                    for name in ("num_blocks", "num_host_blocks", "max_model_len")
                }
            )
            assert sizes.max_model_len is not None
            self.front_end = await asyncio.to_thread(
                distant_front_end, sizes, self._context.registry, sizes.max_model_len
            )

    def _join(self, replica: Replica) -> None:
        """An engine takes requests."""
        assert replica.client is not None
        self._book.joined(replica.number, replica.client.settings.num_blocks or 0)
        self._book.offer(replica.number)
        replica.leaves.clear()
        replica.be(ClientState.READY)
        if self._router.wants_block_events:
            replica.feed = BlockFeed(replica.client, replica.number, self._router)
        _log.info("replica_joined", replica=replica.number)
        self._changed.set()
        self._serve_homeless()
