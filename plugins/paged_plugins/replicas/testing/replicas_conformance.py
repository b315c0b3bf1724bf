"""The conformance class of clients of several engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import ClassVar

import pytest
from psutil import Process

from paged_core.client.choice import ClientContext
from paged_core.client.engine_client import ClientState, EngineClient, OutputStream
from paged_core.errors import EngineError, RequestError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import settings_class
from paged_plugins.replicas.replicas import Replicas
from paged_testing.component import ComponentConformance

_SECONDS = 120.0
_ANSWER, _LONG = 24, 900
_BLOCKS = 256
_PINNED = tuple(range(40, 0, -1))


class ReplicasConformance(ComponentConformance):
    """Subclass it for a component of the slot ``replicas``, with options that ask for two engines::

        class TestMyReplicas(ReplicasConformance):
            component = {"name": "my_replicas", "count": 2}

    The engines run no model: see executor ``memory``.
    """

    slot: ClassVar[str] = "replicas"
    _engines: Sequence[Process] = ()
    """Processes that the client has started."""

    def run(self, test: Callable[[Replicas], Awaitable[None]]) -> None:
        """Run a test with a client whose engines all take requests."""

        async def main() -> None:
            settings = settings_class(self.registry)(
                executor="memory",
                num_blocks=_BLOCKS,
                max_model_len=1024,
                observers=["block_events", "metrics"],
            )
            context = ClientContext(
                settings=settings, registry=self.registry, single=self._no_single
            )
            client = self.build(context)
            assert isinstance(client, Replicas)
            others = Process().children()
            async with client:
                await client.start()
                await until(lambda: len(ready(client)) == len(client.replicas()))
                self._engines = [each for each in Process().children() if each not in others]
                await test(client)
                last = ask(client, 99)
                await client.drain()
                assert last.has_ended, "drain() returns while a request is unfinished"
                with pytest.raises(EngineError):
                    ask(client, 100)
            left = [each for each in Process().children() if each in self._engines]
            assert not left, f"close() returns, and engines go on: {left}"
            await client.close()
            assert client.health().state is ClientState.FAILED
            with pytest.raises(EngineError):
                ask(client, 0)

        asyncio.run(asyncio.wait_for(main(), _SECONDS))

    def _no_single(self) -> EngineClient:
        raise AssertionError("the options of the test ask for two engines, not for one")

    # ------------------------------------------------------------------ written cases

    def test_answers_every_request_once(self) -> None:
        """Requests that are aborted or refused are not there any more."""

        async def test(client: Replicas) -> None:
            streams = [ask(client, number) for number in range(8)]
            health = client.health()
            assert health.num_unfinished == health.num_waiting == 8
            assert health.num_waiting_tokens == sum(len(each.request.prompt) for each in streams)
            assert sum(each.num_unfinished for each in client.replicas()) == 8
            for stream in streams:
                whole = await stream.wait()
                assert whole.prompt == f"text of {stream.request.id}"
                assert len(whole.outputs[0].token_ids) == _ANSWER
            assert client.health().num_unfinished == 0
            assert sum(each.num_routed for each in client.replicas()) == 8
            found = await client.metrics()
            assert found.num_finished == 8
            assert found.num_generated_tokens == 8 * _ANSWER
            assert found.num_blocks == found.num_free_blocks == _BLOCKS * len(client.replicas())
            client.abort("unknown")
            kept = ask(client, 0)
            closed, *aborted = (ask(client, number, tokens=_LONG) for number in range(1, 6))
            with pytest.raises(RequestError):
                ask(client, 0)  # the id is in use
            for stream in aborted:
                client.abort(stream.request.id)
            closed.close()
            refused = ask(client, 6, length=5000)
            with pytest.raises(RequestError):
                await refused.wait()
            assert (await kept.wait()).finished
            for stream in aborted:
                (output,) = (await stream.wait()).outputs
                assert len(output.token_ids) < _LONG, "it was aborted, and goes on"
            await until(lambda: not client.health().num_unfinished)
            assert not any(each.num_unfinished for each in client.replicas())
            for stream in [ask(client, number) for number in range(4)]:
                assert (await stream.wait()).finished

        self.run(test)

    def test_tells_how_many_engines_there_are(self) -> None:
        async def test(client: Replicas) -> None:
            found = client.replicas()
            assert len(found) >= 2
            assert [each.number for each in found] == list(range(len(found)))
            assert client.health().num_engines == len(found)
            assert client.health().state is ClientState.READY
            assert client.health().reason is None
            assert (await ask(client, 0).wait()).finished
            reports = [await client.report(f"block_events@{each.number}") for each in found]
            caching = [any(keys for _, keys in each["events"]) for each in reports]
            routed = [bool(each.num_routed) for each in client.replicas()]
            assert caching == routed, "a report of one replica is that of another"
            since = reports[caching.index(True)]["next"]
            later = await client.report(f"block_events@{caching.index(True)}", since)
            assert not later["events"], "report() does not pass on from which number on"
            merged = await client.report("metrics")
            assert all(f'engine="{each.number}"' in merged for each in found), merged
            calls = (client.drain_replica, client.start_replica)
            for call, number in product(calls, (-1, len(found))):
                with pytest.raises(RequestError, match=str(number)):
                    await call(number)
            with pytest.raises(RequestError):
                await client.report("an observer that is not there")
            with pytest.raises(RequestError):  # it was not drained
                await client.start_replica(0)

        self.run(test)

    def test_drains_one_and_starts_it_again(self) -> None:
        """A prefix that is pinned is kept by one that is started again, too. What drains, and is
        told to go on, gets requests again."""

        async def test(client: Replicas) -> None:
            pin = await client.pin(_PINNED, cache_salt="salt")
            assert not await client.reset_prefix_cache(), "it was forgotten, and is pinned"
            streams = [ask(client, number, tokens=_LONG) for number in range(6)]
            for goes_on in (True, False):
                for stream in streams:
                    await anext(stream)
                draining = asyncio.create_task(client.drain_replica(0))
                await asyncio.sleep(0)
                routed = client.replicas()[0].num_routed
                if goes_on:
                    draining.cancel()
                    await asyncio.wait([draining])
                streams += [ask(client, len(streams) + number) for number in range(6)]
                drained = client.replicas()[0]
                assert (drained.num_routed > routed) == goes_on, (
                    f"a replica that drains{', and is told to go on,' * goes_on} had {routed} "
                    f"requests, and has {drained.num_routed} when six more have come"
                )
            for stream in streams:
                assert (await stream.wait()).finished
            await draining
            drained = client.replicas()[0]
            total = sum(each.num_routed for each in client.replicas())
            assert total == len(streams), "drain_replica() waits until its requests have ended"
            assert drained.state is ClientState.DRAINING
            assert client.health().state is ClientState.READY
            assert client.health().num_engines == len(client.replicas())
            assert (await client.metrics()).num_blocks <= _BLOCKS * (len(client.replicas()) - 1)
            assert "0" in (client.health().reason or ""), "health() does not say which one is away"
            await client.start_replica(0)
            assert client.replicas()[0].state is ClientState.READY
            assert client.health().reason is None
            await check_pinned(client)
            await client.release(pin)
            assert await client.reset_prefix_cache(), "nothing is pinned"

        self.run(test)

    def test_never_drains_the_last_one(self) -> None:
        async def test(client: Replicas) -> None:
            numbers = [each.number for each in client.replicas()]
            await client.release(await client.pin(tuple(range(40))))
            for number in numbers[1:]:
                await client.drain_replica(number)
            with pytest.raises(RequestError):
                await client.drain_replica(0)
            assert (await ask(client, 0).wait()).finished
            await client.start_replica(1)
            assert (await ask(client, 1).wait()).finished
            assert await client.reset_prefix_cache(), "a pin that was released is there again"

        self.run(test)

    def test_goes_on_after_an_engine_was_lost(self) -> None:
        """Requests of a lost one are answered by another one, or raise; it is started again, with
        what is pinned."""

        async def test(client: Replicas) -> None:
            if not self._engines:
                pytest.skip("its engines are no processes of this machine")
            await client.pin(_PINNED, cache_salt="salt")
            streams = [ask(client, number) for number in range(8)]
            self._engines[0].kill()
            for stream in streams:
                with suppress(EngineError):
                    (output,) = (await stream.wait()).outputs
                    assert len(output.token_ids) == _ANSWER
            await until(lambda: len(ready(client)) == len(client.replicas()))
            counts = [client.health().num_unfinished]
            counts += [each.num_unfinished for each in client.replicas()]
            assert not any(counts), f"{counts} requests are unfinished, and all have ended"
            await check_pinned(client)

        self.run(test)


async def check_pinned(client: Replicas) -> None:
    """Check that requests are answered, and that each of the engines keeps a prefix."""
    for given in ((), _PINNED):
        streams = [ask(client, number, prompt=given) for number in range(6)]
        for stream in streams:
            assert (await stream.wait()).finished
    cached = [stream.num_cached_tokens for stream in streams]
    assert all(cached), f"of requests that begin with a pinned prefix {cached} are cached"


def ask(
    client: EngineClient,
    number: int,
    *,
    length: int = 19,
    prompt: tuple[int, ...] = (),
    tokens: int = _ANSWER,
) -> OutputStream:
    """Give a request of a few tokens to a client."""
    return client.generate(
        Request(
            id=f"request-{number}",
            prompt=prompt or tuple(range(number + 1, number + 1 + length)),
            sampling=SamplingParams(max_tokens=tokens, ignore_eos=True),
            arrival=client.clock(),
            cache_salt="salt" if prompt else None,
        ),
        prompt=f"text of request-{number}",
    )


def ready(client: Replicas) -> list[int]:
    """Return the numbers of the replicas that take requests."""
    return [each.number for each in client.replicas() if each.state is ClientState.READY]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not condition():
        await asyncio.sleep(0.01)
