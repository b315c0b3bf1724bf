"""A client of several engines: it routes requests, and serves again what one of them loses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

from paged_core.client.choice import ClientContext
from paged_core.client.engine_client import ClientHealth, ClientState, EngineClient, OutputStream
from paged_core.client.streams import SHUTTING_DOWN, CopiedStream
from paged_core.engine.clock import SystemClock
from paged_core.engine.outcome import EngineMetrics
from paged_core.errors import EngineError, EngineLost, PagedCoreError, RequestError
from paged_core.log import get_logger
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_core.processes.child import Child
from paged_core.processes.ray_child import Cluster, RayChild
from paged_core.request import Request
from paged_core.text.generation import Generation
from paged_plugins.engine_process.client import NAME, TARGET, ProcessClient, distant_front_end
from paged_plugins.engine_process.kept_pins import KeptPins
from paged_plugins.replicas.block_feed import BlockFeed
from paged_plugins.replicas.engine_settings import (
    engine_settings,
    num_starting,
    refuse_caches_without_room,
    router_options,
)
from paged_plugins.replicas.replica import Replica
from paged_plugins.replicas.replicas import ReplicaHealth, Replicas
from paged_plugins.replicas.settings import RoutedSettings
from paged_plugins.routing.checked_router import CheckedRouter
from paged_plugins.routing.load_book import LoadBook
from paged_plugins.routing.router import RouterContext

_TOGETHER_SECONDS = 0.1
"""Engines that are lost within so long are lost at once: what one had does not go to the other."""
_LOOK_SECONDS = 0.25
"""Seconds between two looks at deadlines of requests that no engine has."""
_COUNT_SECONDS = 0.1
"""Seconds between two counts of the tokens of answers, for the loads."""
_REPORT_SECONDS = 3.0
"""Seconds that an engine has to answer what all are asked; then the others' answers are used."""

_GONE = (ClientState.DRAINING, ClientState.FAILED)
"""States of a replica that will not be ready by itself."""

_log = get_logger()
_Answer = TypeVar("_Answer")


def make_replicas(options: RoutedSettings, context: ClientContext, /) -> EngineClient:
    """Return the client of several engines; of a single one here, what its caller would have."""
    if options.count == 1 and options.placement == "process" and not options.devices:
        return context.single()
    return RoutedClient(options, context)


def _open_cluster() -> Cluster:
    return Cluster("replicas.placement", shows_logs=True)


def sum_metrics(found: Collection[EngineMetrics]) -> EngineMetrics:
    """Return the sums of all counts, and of the seconds by phase."""
    names = [field.name for field in fields(EngineMetrics) if field.name != "seconds"]
    sums = {name: sum(getattr(each, name) for each in found) for name in names}
    seconds: Counter[str] = Counter()
    for each in found:
        seconds.update(each.seconds)
    return EngineMetrics(**sums, seconds=dict(seconds))


def merge_of(observer: str, registry: Registry) -> Callable[[Mapping[int, Any]], Any] | None:
    """Return what makes one report of those of several engines, if an observer has that."""
    component = registry.of("observers").get(observer)
    return None if component is None else getattr(component.load(), "merge_reports", None)


class RoutedClient(Replicas):
    """Engines in processes, or in actors of Ray, and a router that chooses between them.

    It takes requests as soon as one engine does. One that is lost is started again, with pauses
    that grow. What nothing was read of is then served by another one; the rest ends with
    ``EngineLost``. A request is given to two engines at most.

    Raises:
        SettingsError, PluginError: the router cannot be used, or the engines cannot be there.
    """

    def __init__(self, options: RoutedSettings, context: ClientContext, /) -> None:
        self.clock = SystemClock()
        self._options, self._context, self._settings = options, context, context.settings
        refuse_caches_without_room(self._settings, options)
        chosen = router_options(options, context)
        made = make_component(
            context.registry,
            "router",
            chosen,
            RouterContext(
                block_size=self._settings.block_size,
                seed=self._settings.seed,
                maker=context.maker,
            ),
        )
        self._router = CheckedRouter(made, chosen.name)
        self._book = LoadBook(self._router)
        self.starting = asyncio.Semaphore(num_starting(options))
        self._replicas = [Replica(n, self, self._make_client) for n in range(options.count)]
        self._make_client(self._replicas[0])  # raises now what it would raise later
        self._feeds: dict[int, BlockFeed] = {}
        self._state, self._reason = ClientState.STARTING, None
        self._starting: asyncio.Future[None] | None = None
        self._preparing = asyncio.Lock()
        self._news = asyncio.Event()
        self._streams: dict[str, CopiedStream] = {}
        """Streams that have not ended, by the id of the request."""
        self._unserved: list[CopiedStream] = []
        """Streams that no engine has at the moment."""
        self._serving: asyncio.TimerHandle | None = None
        """Next look at the streams that no engine has."""
        self._counted_at = 0.0
        self._cluster: Cluster | None = None
        self._pins = KeptPins(self.clock)

    _state: ClientState
    _reason: str | None

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_first())
        await asyncio.shield(self._starting)

    async def _start_first(self) -> None:
        """Start the engines, and return when the first one takes requests.

        If the settings do not say how many blocks there are, the first one measures, and the others
        have as many.
        """
        measures = self._settings.num_blocks is None
        begun, later = (
            (self._replicas[:1], self._replicas[1:]) if measures else (self._replicas, [])
        )
        try:
            if self._options.placement == "ray":
                self._cluster = await asyncio.to_thread(_open_cluster)
            for replica in begun:
                replica.start()
            while not any(replica.is_ready for replica in begun):
                failures = [each.failure for each in begun if each.failure is not None]
                if len(failures) == len(begun):
                    raise failures[0]
                await self.change()
        except BaseException as error:
            self._state, self._reason = ClientState.FAILED, str(error)
            await self._close_replicas(self._reason)
            raise
        for replica in later:
            replica.start()
        if self._state is ClientState.STARTING:
            self._state = ClientState.READY

    def _make_client(self, replica: Replica) -> ProcessClient:
        settings = engine_settings(
            self._settings,
            self._options,
            replica.number,
            block_events=self._router.wants_block_events,
        )
        context = self._context
        return ProcessClient(
            settings,
            context.registry,
            hang_seconds=context.hang_seconds,
            log_level=context.log_level,
            owner=replica,
            launch=self._launch_actor if self._options.placement == "ray" else None,
        )

    def _launch_actor(self) -> Child:
        options = {
            "num_cpus": self._options.cpus,
            "num_gpus": self._options.gpus,
            "scheduling_strategy": "SPREAD",
        }
        return RayChild(TARGET, name=NAME, options=options)

    async def close(self) -> None:
        self._state, self._reason = ClientState.FAILED, "it is closed"
        for stream in list(self._unserved):
            stream.close()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            with suppress(asyncio.CancelledError):
                await self._starting
        await self._close_replicas(self._reason)

    async def _close_replicas(self, reason: str) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._feeds.clear()
        closing = [replica.close(ClientState.FAILED, reason) for replica in self._replicas]
        await asyncio.gather(*closing)
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await asyncio.to_thread(cluster.close)

    async def drain(self) -> None:
        if self._state is not ClientState.FAILED:
            self._state, self._reason = ClientState.DRAINING, SHUTTING_DOWN
        while self._streams:
            await self.change()

    # ------------------------------------------------------------------ requests

    def generate(self, request: Request, /, *, prompt: str | None = None) -> OutputStream:
        if self._state is not ClientState.READY:
            raise EngineError(f"no requests are taken: {self._reason or self._state.value}")
        if request.id in self._streams:
            raise RequestError(
                f"request {request.id!r} is being served already; give each request its own id"
            )
        self._withhold_ended()
        if not self._book.offered:
            raise EngineError(f"no requests are taken: {self._whole()[1]}")
        generation = Generation(request, prompt, self.front_end.tokenizer)
        stream = CopiedStream(-1, generation, self._leave, self.clock)
        self._serve(stream)
        return stream

    def _serve(self, stream: CopiedStream) -> None:
        """Route a request to one of the replicas that are offered, of which there are some."""
        request, now = stream.request, self.clock()
        if now - self._counted_at > _COUNT_SECONDS:
            self._counted_at = now
            for replica in self._replicas:
                replica.count_tokens()
        routed = self._book.route(request, request.session or request.tenant)
        self._streams[request.id] = stream
        self._replicas[routed.replica].serve(stream, routed)

    def _withhold_ended(self) -> None:
        """Route nothing to an engine that has ended, or hangs, although it was not missed yet."""
        for number in list(self._book.offered):
            if not self._replicas[number].is_ready:
                self._book.withhold(number)

    def _serve_unserved(self) -> None:
        """Serve what lost engines had, if there is one that takes requests."""
        self._withhold_ended()
        while self._unserved and self._book.offered:
            stream = self._unserved.pop(0)
            try:
                self._serve(stream)
            except PagedCoreError as error:
                stream.fail(error)
                self.ended(stream)
        now = self.clock()
        awaited = [each for each in self._unserved if each.request.deadline is not None]
        for stream in awaited:
            if (stream.request.deadline or now) < now:
                self._unserved.remove(stream)
                stream.fail(
                    EngineLost(f"its deadline passed, and no engine runs: {self._whole()[1]}")
                )
                self.ended(stream)
        if awaited:
            self._serve_later(_LOOK_SECONDS)

    def _serve_later(self, seconds: float) -> None:
        if self._serving is not None:
            self._serving.cancel()
        loop = asyncio.get_running_loop()
        self._serving = loop.call_later(seconds, self._serve_unserved)

    def _leave(self, stream: CopiedStream) -> None:
        """The reader of a request that no engine has leaves."""
        if stream in self._unserved:
            self._unserved.remove(stream)
            self.ended(stream)
            stream.abort()

    def abort(self, request_id: str, /) -> None:
        stream = self._streams.get(request_id)
        if stream in self._unserved:
            self._leave(stream)
            return
        for replica in self._replicas:
            if stream in replica.served and replica.client is not None:
                replica.client.abort(request_id)

    # ------------------------------------------------------------------ of the replicas

    async def prepare(self, client: ProcessClient, /) -> None:
        """Make what the first engine that is ready allows to make."""
        async with self._preparing:
            if hasattr(self, "front_end"):
                return
            found = client.settings
            sizes = ("num_blocks", "num_host_blocks", "max_model_len")
            self._settings = self._settings.model_copy(
                update={name: getattr(found, name) for name in sizes}
            )
            assert found.max_model_len is not None
            self.front_end = await asyncio.to_thread(
                distant_front_end, found, self._context.registry, found.max_model_len
            )

    def joined(self, replica: Replica, /) -> None:
        client = replica.client
        assert client is not None
        self._book.joined(replica.number, client.settings.num_blocks or 0)
        self._book.offer(replica.number)
        if self._router.wants_block_events:
            self._feeds[replica.number] = BlockFeed(client, replica.number, self._router)
        self._pins.joined(client)
        self._serve_unserved()

    def left(self, replica: Replica, streams: Sequence[CopiedStream], /) -> None:
        with suppress(EngineError):  # of the router, which the next request is told, too
            self._book.left(replica.number)
        if replica.number in self._feeds:
            self._feeds.pop(replica.number).close()
        for stream in streams:
            stream.move(-1, self._leave)
            self._streams[stream.request.id] = stream
        self._unserved += streams
        if self._unserved:
            self._serve_later(_TOGETHER_SECONDS)

    def ended(self, stream: CopiedStream, /) -> None:
        self._streams.pop(stream.request.id, None)
        self.tell()

    def tell(self) -> None:
        if self._state is not ClientState.FAILED and self._are_given_up:
            self._state, self._reason = ClientState.FAILED, self._whole()[1]
            unserved, self._unserved = self._unserved, []
            for stream in unserved:
                stream.fail(EngineLost(f"all engines are given up: {self._reason}"))
                del self._streams[stream.request.id]
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def change(self) -> None:
        await self._news.wait()

    @property
    def _are_given_up(self) -> bool:
        return all(each.state is ClientState.FAILED for each in self._replicas)

    # ------------------------------------------------------------------ one by one

    def replicas(self) -> list[ReplicaHealth]:
        return [replica.health() for replica in self._replicas]

    async def drain_replica(self, number: int, /) -> None:
        replica = self._replica(number)
        others = [each for each in self._replicas if each is not replica]
        while not (replica.is_ready and any(each.is_ready for each in others)):
            if replica.state in _GONE:
                raise RequestError(
                    f"replica {number} takes no requests, so there is nothing to drain: "
                    f"{replica.reason}"
                )
            if all(each.state in _GONE for each in others):
                raise RequestError("no other replica takes requests: nothing was drained")
            await self.change()
        self._book.withhold(number)
        try:
            await replica.drain()
        except asyncio.CancelledError:
            if replica.is_ready:
                self._book.offer(number)
            raise

    async def start_replica(self, number: int, /) -> None:
        replica = self._replica(number)
        if not replica.is_drained:
            raise RequestError(f"replica {number} was not drained; it is {replica.state.value}")
        replica.start()
        while not replica.is_ready:
            if replica.state is ClientState.FAILED:
                raise EngineError(f"replica {number} cannot be started: {replica.reason}")
            await self.change()

    def _replica(self, number: int) -> Replica:
        if not 0 <= number < len(self._replicas):
            raise RequestError(
                f"there is no replica {number}; there are 0 to {len(self._replicas) - 1}"
            )
        return self._replicas[number]

    # ------------------------------------------------------------------ all together

    def health(self) -> ClientHealth:
        state, reason = self._whole()
        clients = [each.client.health() for each in self._replicas if each.client is not None]
        waiting = [len(each.request.prompt) for each in self._unserved]
        return ClientHealth(
            state=state,
            reason=reason,
            num_unfinished=len(self._streams),
            num_waiting=len(waiting) + sum(each.num_waiting for each in clients),
            num_waiting_tokens=sum(waiting) + sum(each.num_waiting_tokens for each in clients),
            silent_for=max((each.silent_for for each in clients), default=0.0),
            num_engines=len(self._replicas),
        )

    def _whole(self) -> tuple[ClientState, str | None]:
        """Return whether requests are taken, and what the replicas are that take none."""
        found = self.replicas()
        others = [each for each in found if each.state is not ClientState.READY]
        about = "; ".join(
            f"replica {each.number} is {each.state.value}"
            + (f": {each.reason}" if each.reason else "")
            for each in others
        )
        num_ready = len(found) - len(others)
        reason = f"{num_ready} of {len(found)} replicas are ready; {about}" if others else None
        if self._state is not ClientState.READY:
            return self._state, self._reason or reason
        return (ClientState.READY if num_ready else ClientState.RESTARTING), reason

    async def _ask_all(
        self,
        question: Callable[[ProcessClient], Awaitable[_Answer]],
        seconds: float | None = None,
    ) -> dict[int, _Answer]:
        """Ask every replica that is ready; return what they say, by number.

        Args:
            seconds: one that does not answer within so many is left out.

        Raises:
            EngineError: none does.
            RequestError: what is asked is wrong.
        """
        asked = [each for each in self._replicas if each.is_ready]

        async def ask(replica: Replica) -> _Answer:
            assert replica.client is not None
            return await asyncio.wait_for(question(replica.client), seconds)

        found = await asyncio.gather(*map(ask, asked), return_exceptions=True)
        answers: dict[int, _Answer] = {}
        for replica, answer in zip(asked, found, strict=True):
            if not isinstance(answer, BaseException):
                answers[replica.number] = answer
            elif not isinstance(answer, (EngineError, TimeoutError)):
                raise answer
        if not answers:
            raise EngineError(f"no engine answers: {self._whole()[1] or 'all are in long steps'}")
        return answers

    async def metrics(self) -> EngineMetrics:
        """Return the sums over the replicas that are ready."""
        return sum_metrics((await self._ask_all(lambda client: client.metrics())).values())

    async def report(self, observer: str, /, since: int = 0) -> Any:
        """Return what an observer reports: of all replicas, or of one.

        ``name@1`` asks replica 1. Without a number, all are asked if the class of the observer has
        ``merge_reports``, which makes one report of those of several engines; else the first one.
        """
        name, at, number = observer.partition("@")
        merge = None if at else merge_of(name, self._context.registry)
        if merge is not None:
            reports = await self._ask_all(
                lambda client: client.report(name, since), _REPORT_SECONDS
            )
            return merge(reports)
        if at and not (number.isascii() and number.isdigit()):
            raise RequestError(f"{observer!r} names no replica; write {name}@0")
        replica = self._replica(int(number or 0))
        if replica.client is None or not replica.is_ready:
            raise EngineError(
                f"replica {replica.number} is {replica.state.value}: {replica.reason}"
            )
        return await replica.client.report(name, since)

    async def pin(
        self, tokens: Sequence[int], /, *, ttl: float | None = None, cache_salt: str | None = None
    ) -> str:
        """Keep a prefix in the cache of every replica, also of one that is started again."""
        clients = [each.client for each in self._replicas if each.is_ready and each.client]
        if not clients:
            raise EngineError(f"nothing is pinned: {self._whole()[1]}")
        return await self._pins.pin(clients, tokens, ttl, cache_salt)

    async def release(self, pin: str, /) -> None:
        await self._pins.release(pin)

    async def reset_prefix_cache(self) -> bool:
        """Forget the cached prefixes of every replica; ``False``: some could not, others have."""
        return all((await self._ask_all(lambda client: client.reset_prefix_cache())).values())
