"""Clients of several engines, and what tests of them ask and wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from paged_core import AsyncLLM, SamplingParams
from paged_core.client.engine_client import ClientState, OutputStream
from paged_core.text.outputs import RequestOutput
from paged_plugins.replicas.routed_client import RoutedClient
from server.served import run

BLOCKS = 1024
SETTINGS: dict[str, Any] = {"executor": "memory", "num_blocks": BLOCKS, "max_model_len": 8192}
"""Engines without a model, whose processes start in a second."""
LONG = SamplingParams(max_tokens=1200, ignore_eos=True)
FOREVER = SamplingParams(max_tokens=8000, ignore_eos=True)
SHORT = SamplingParams(max_tokens=8, ignore_eos=True)
_NUMBERS = count()


def make_client(replicas: dict[str, Any] | None = None, **settings: Any) -> RoutedClient:
    table = {"count": 2, "router": "least_loaded", **(replicas or {})}
    client = AsyncLLM(replicas=table, **{**SETTINGS, **settings}).client
    assert isinstance(client, RoutedClient)
    return client


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


async def all_ready(client: RoutedClient) -> None:
    await until(lambda: client.health().reason is None, "not all are ready")
    assert client.health().state is ClientState.READY


def with_replicas(test: Callable[[RoutedClient], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with make_client(**options) as client:
            await all_ready(client)
            await asyncio.wait_for(test(client), 240)

    run(main())


def ids(text: str) -> list[int]:
    """Return a prompt of tokens: there is no tokenizer."""
    return [*text.encode()]


def ask(
    client: RoutedClient, prompt: str | list[int], sampling: SamplingParams = SHORT, **fields: Any
) -> OutputStream:
    made = client.front_end.generation(
        ids(prompt) if isinstance(prompt, str) else prompt,
        sampling,
        arrival=client.clock(),
        request_id=f"r{next(_NUMBERS)}",
        **fields,
    )
    return client.generate(made.request, prompt=made.prompt)


async def read(stream: OutputStream) -> RequestOutput:
    async for _ in stream:
        pass
    return stream.output()


def pids(client: RoutedClient) -> list[int]:
    found = [replica.client and replica.client.pid for replica in client._replicas]
    return [pid for pid in found if pid is not None]


def replica_of(client: RoutedClient, stream: OutputStream) -> int:
    return next(each.number for each in client._replicas if stream in each.served)


async def share(client: RoutedClient) -> None:
    """Check that each replica gets requests."""
    before = [each.num_routed for each in client.replicas()]
    await asyncio.gather(*(ask(client, f"Hello {n}").wait() for n in range(4)))
    after = [each.num_routed for each in client.replicas()]
    assert all(now > was for now, was in zip(after, before, strict=True)), (before, after)


@asynccontextmanager
async def states_of(client: RoutedClient) -> AsyncIterator[set[ClientState]]:
    """Watch what `/ready` would say, while the block runs."""
    seen = set[ClientState]()

    async def watch() -> None:
        while True:
            state = client.health().state
            seen.add(state)
            living = [each for each in client._replicas if each.is_ready]
            assert (state is ClientState.READY) == bool(living)
            await asyncio.sleep(0.002)

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
