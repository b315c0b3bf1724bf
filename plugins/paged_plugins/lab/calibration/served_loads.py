"""Loads for a server that is measured, and what is seen of its answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from paged_core.errors import EngineError, SettingsError
from paged_plugins.http_client import HttpClient, ServerError
from paged_plugins.http_load import Answer, Load, random_requests
from paged_plugins.progress import counted
from paged_plugins.workloads.request import WorkloadRequest

_PROMPTS = 4
"""Lengths of prompts in a design."""
_OUTPUTS = (16, 48)
_SPREAD = 0.3
"""Lengths in a load differ by this share, so that its requests do not all end at once."""
CACHE_SLOTS = 60_000
"""Tokens that a load may have in flight where the server does not tell the size of its cache."""
_LEAST_LOADS = 6
_REPEATED_EVERY = 3
"""After so many loads the first one is sent again: how its times differ is the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoad:
    """Requests of clients that each send the next one once they have an answer."""

    clients: int
    prompt: int
    """Tokens, on average."""
    requests: Sequence[WorkloadRequest]

    @property
    def first_seen(self) -> int:
        """Place of the first request that counts: those before it arrive together."""
        return self.clients if self.clients > 1 else 0


@dataclass(frozen=True, slots=True)
class Middle:
    """The mean time of the requests that were neither among the fastest quarter nor the slowest:
    others on the machine, and the client's, disturb some."""

    seconds: float
    ids: frozenset[str]
    """Ids of the requests that count."""

    @classmethod
    def of(cls, times: Mapping[str, float]) -> Middle:
        """Return it of times by request."""
        cut = len(times) // 4
        kept = sorted(times, key=lambda each: times[each])[cut : len(times) - cut]
        return cls(fmean(times[each] for each in kept), frozenset(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """A load that a server answered."""

    load: ClosedLoad
    """With as many tokens in the outputs as came."""
    ttft: Middle
    """From a request to its first token."""
    tpot: Middle | None
    """Per later token; ``None``: there was none."""

    @classmethod
    def of(cls, load: ClosedLoad, answers: Sequence[Answer]) -> ServedLoad:
        """Return the load with what was seen of it; answers stand in the order of the requests."""
        pairs = list(zip(load.requests, answers, strict=True))
        asked = [replace(request, output=answer.num_output) for request, answer in pairs]
        seen = pairs[load.first_seen :]
        later = {request.id: answer.tpot for request, answer in seen if answer.num_output > 1}
        return cls(
            load=replace(load, requests=asked),
            ttft=Middle.of({request.id: answer.ttft for request, answer in seen}),
            tpot=Middle.of(later) if later else None,
        )


def design(
    *, most_clients: int, most_prompt: int, most_requests: int, room: int, vocab_size: int
) -> list[ClosedLoad]:
    """Return loads over a grid of clients, lengths of prompts and of answers, small ones first.

    Args:
        most_prompt: tokens of a prompt, on average.
        most_requests: in all loads together; the largest loads are left out.
        room: tokens that all requests of a load may have together.

    Raises:
        SettingsError: fewer loads fit than a fit needs.
    """
    clients = sorted({*(4**n for n in range(12) if 4**n < most_clients), most_clients})
    shortest = min(32, most_prompt)
    prompts = sorted({int(each) for each in np.geomspace(shortest, most_prompt, _PROMPTS)})
    grid = sorted(product(clients, prompts), key=lambda each: (each[0] * each[1], each))
    loads: list[ClosedLoad] = []
    left = most_requests
    for number, (count, length) in enumerate(grid):
        output, needed = _OUTPUTS[number % len(_OUTPUTS)], max(8, 2 * count + 2)
        if count * (length + output) * (1 + _SPREAD) <= room and needed <= left:
            left -= needed
            requests = random_requests(
                needed,
                num_input=length,
                num_output=output,
                num_prefix=0,
                num_prefixes=1,
                range_ratio=_SPREAD,
                vocab_size=vocab_size,
                seed=number,
            )
            loads.append(ClosedLoad(clients=count, prompt=length, requests=requests))
    if len(loads) < _LEAST_LOADS:
        raise SettingsError(
            f"{counted(len(loads), 'load')} of {counted(most_requests, 'request')} and "
            f"{room:,} tokens in flight cannot be fitted to, {_LEAST_LOADS} can; raise --requests "
            "or --max-concurrency, or the server's cache"
        )
    return loads


class Driven(NamedTuple):
    """Loads that were answered in time, and the noise in their times."""

    loads: list[ServedLoad]
    noise: float | None
    """Share of the median by which the times of one load differ at most, of several tries;
    ``None``: there was one."""


def in_turn(loads: Sequence[ClosedLoad]) -> list[ClosedLoad]:
    """Return loads as they are sent: the first one before all, for what a server does once, and
    again between the others."""
    sent = [loads[0]]
    for number, load in enumerate(loads, start=1):
        sent += [load] if number % _REPEATED_EVERY else [load, loads[0]]
    return sent


def noise_of(tries: Sequence[ServedLoad]) -> float | None:
    """Return :attr:`Driven.noise` of the tries of one load."""
    kinds = (
        [each.ttft.seconds for each in tries],
        [each.tpot.seconds for each in tries if each.tpot],
    )
    known = [times for times in kinds if len(times) > 1]
    return max((max(times) - min(times)) / median(times) for times in known) if known else None


async def drive(
    client: HttpClient,
    model: str,
    loads: Sequence[ClosedLoad],
    *,
    vocab_size: int,
    seconds: float,
    advance: Callable[[], None],
) -> Driven:
    """Send loads one after the other, as :func:`in_turn` says, until the time is up.

    Raises:
        EngineError: the server answered a request with an error, or fewer loads than a fit needs.
    """
    until = perf_counter() + seconds
    served: list[ServedLoad] = []
    tries: list[ServedLoad] = []
    for load in in_turn(loads):
        sender = Load(
            client,
            model,
            vocab_size=vocab_size,
            max_concurrency=load.clients,
            extra={},
            told=advance,
        )
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + until - perf_counter()
            ):
                answers, _ = await sender.run(load.requests)
        except TimeoutError:
            break
        failed = next((answer.error for answer in answers if answer.error), None)
        if failed is not None:
            raise EngineError(
                f"{client.url} did not serve a load of {counted(load.clients, 'client')} with "
                f"prompts of {load.prompt} tokens: {failed}"
            )
        (tries if load is loads[0] else served).append(ServedLoad.of(load, answers))
    served = [*tries[1:2], *served]
    if len(served) < _LEAST_LOADS:
        raise EngineError(
            f"{client.url} answered {len(served)} of {len(loads)} loads in {seconds:g} s, "
            f"{_LEAST_LOADS} are needed; raise --seconds, or lower --max-prompt and "
            "--max-concurrency"
        )
    return Driven(served, noise_of(tries[1:]))


async def cache_of(client: HttpClient) -> tuple[int, int] | None:
    """Return the blocks of a server's cache and their size, as vLLM's metrics tell them; ``None``:
    they do not."""
    found: dict[str, int] = {}
    with suppress(ServerError):
        for line in (await client.text("/metrics")).splitlines():
            if line.startswith("vllm:cache_config_info"):
                for name in ("num_gpu_blocks", "block_size"):
                    if number := re.search(rf'\b{name}="(\d+)"', line):
                        found[name] = int(number[1])
                break
    if min(found.values(), default=0) < 1 or len(found) < 2:
        return None
    return found["num_gpu_blocks"], found["block_size"]
