"""The conformance class of clients of several engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

import pytest

from paged_core.client.choice import ClientContext
from paged_core.client.engine_client import ClientState, EngineClient, OutputStream
from paged_core.errors import EngineError, RequestError
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import settings_class
from paged_plugins.replicas.replicas import Replicas
from paged_testing.component import ComponentConformance

_SECONDS = 120.0
_ANSWER = 24


class ReplicasConformance(ComponentConformance):
    """Subclass it for a component of the slot ``replicas``, with options that ask for two engines::

        class TestMyReplicas(ReplicasConformance):
            component = {"name": "my_replicas", "count": 2}

    The engines run no model: see executor ``memory``.
    """

    slot: ClassVar[str] = "replicas"

    def run(self, test: Callable[[Replicas], Awaitable[None]]) -> None:
        """Run a test with a client whose engines all take requests."""

        async def main() -> None:
            settings = settings_class(self.registry)(
                executor="memory", num_blocks=64, max_model_len=128
            )
            context = ClientContext(
                settings=settings, registry=self.registry, single=self._no_single
            )
            client = self.build(context)
            assert isinstance(client, Replicas)
            async with client:
                await until(lambda: len(ready(client)) == len(client.replicas()))
                await test(client)
            assert client.health().state is ClientState.FAILED
            with pytest.raises(EngineError):
                ask(client, 0)

        asyncio.run(asyncio.wait_for(main(), _SECONDS))

    def _no_single(self) -> EngineClient:
        raise AssertionError("the options of the test ask for two engines, not for one")

    # ------------------------------------------------------------------ written cases

    def test_answers_every_request_once(self) -> None:
        async def test(client: Replicas) -> None:
            streams = [ask(client, number) for number in range(8)]
            assert client.health().num_unfinished == 8
            assert sum(each.num_unfinished for each in client.replicas()) == 8
            for stream in streams:
                (output,) = (await stream.wait()).outputs
                assert len(output.token_ids) == _ANSWER
            assert client.health().num_unfinished == 0
            assert sum(each.num_routed for each in client.replicas()) == 8
            found = await client.metrics()
            assert found.num_finished == 8
            assert found.num_blocks == found.num_free_blocks == 64 * len(client.replicas())

        self.run(test)

    def test_tells_how_many_engines_there_are(self) -> None:
        async def test(client: Replicas) -> None:
            found = client.replicas()
            assert len(found) >= 2
            assert [each.number for each in found] == list(range(len(found)))
            assert client.health().num_engines == len(found)
            assert client.health().state is ClientState.READY
            assert client.health().reason is None

        self.run(test)

    def test_drains_one_and_starts_it_again(self) -> None:
        async def test(client: Replicas) -> None:
            streams = [ask(client, number) for number in range(6)]
            draining = asyncio.create_task(client.drain_replica(0))
            await asyncio.sleep(0)
            routed = client.replicas()[0].num_routed
            streams += [ask(client, number) for number in range(6, 10)]
            for stream in streams:
                assert (await stream.wait()).finished
            await draining
            drained = client.replicas()[0]
            assert drained.num_routed == routed, "a replica that drains was given a request"
            assert drained.state is ClientState.DRAINING
            assert client.health().state is ClientState.READY
            assert client.health().reason, "health() does not say that one is away"
            await client.start_replica(0)
            assert client.replicas()[0].state is ClientState.READY
            assert client.health().reason is None

        self.run(test)

    def test_never_drains_the_last_one(self) -> None:
        async def test(client: Replicas) -> None:
            numbers = [each.number for each in client.replicas()]
            for number in numbers[1:]:
                await client.drain_replica(number)
            with pytest.raises(RequestError):
                await client.drain_replica(0)
            stream = ask(client, 0)
            assert (await stream.wait()).finished

        self.run(test)

    def test_names_a_replica_that_is_not_there(self) -> None:
        async def test(client: Replicas) -> None:
            number = len(client.replicas())
            for call in (client.drain_replica, client.start_replica):
                with pytest.raises(RequestError, match=str(number)):
                    await call(number)
            with pytest.raises(RequestError):  # it was not drained
                await client.start_replica(0)

        self.run(test)


def ask(client: EngineClient, number: int) -> OutputStream:
    """Give a request of a few tokens to a client."""
    return client.generate(
        Request(
            id=f"request-{number}",
            prompt=tuple(range(number + 1, number + 20)),
            sampling=SamplingParams(max_tokens=_ANSWER, ignore_eos=True),
            arrival=client.clock(),
        )
    )


def ready(client: Replicas) -> list[int]:
    """Return the numbers of the replicas that take requests."""
    return [each.number for each in client.replicas() if each.state is ClientState.READY]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not condition():
        await asyncio.sleep(0.01)
