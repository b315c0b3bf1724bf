"""Requests that are sent to a server, and notes on each answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from random import Random
from time import perf_counter
from typing import Any

from paged_core.cli.output import echo
from paged_core.errors import SettingsError, error_text
from paged_plugins.http_client import HttpClient, ServerError
from paged_plugins.workloads.request import WorkloadRequest, linked
from paged_plugins.workloads.serving import Arrival, Arrivals

_VOCABULARIES = (100_000, 30_000, 10_000, 5_000, 2_000, 1_000, 500, 250)
"""Sizes that are tried, if it is not known up to which number a server takes token ids."""
_INPUT, _OUTPUT = 1024, 128
"""Tokens of a prompt and of its answer, as ``vllm bench serve`` has them."""


@dataclass(slots=True)
class Answer:
    """One request as the client saw it; times are in seconds."""

    num_prompt: int
    at: float
    """When it was sent, from the start of the run."""
    num_output: int = 0
    num_cached: int | None = None
    """Prompt tokens that the cache served, if the server tells."""
    ttft: float = 0.0
    latency: float = 0.0
    itls: list[float] = field(default_factory=list)
    """Between two events with tokens."""
    token_ids: list[int] = field(default_factory=list)
    error: str = ""
    """Why there is no whole answer."""

    @property
    def tpot(self) -> float:
        """Mean seconds per token after the first."""
        return (self.latency - self.ttft) / max(1, self.num_output - 1)


class Load:
    """Sends requests when they arrive, over one connection each.

    Args:
        model: what the requests name.
        vocab_size: token ids of prompts are below it.
        max_concurrency: that so many are served at most; others wait in front of the server.
        told: called when a request has ended.
    """

    def __init__(
        self,
        client: HttpClient,
        model: str,
        *,
        vocab_size: int,
        max_concurrency: int | None,
        extra: dict[str, Any],
        told: Callable[[], None],
    ) -> None:
        self._client, self._model, self._vocab_size = client, model, vocab_size
        self._extra, self._told = extra, told
        self._places = asyncio.Semaphore(max_concurrency or 1 << 30)
        self._running = 0
        self.most_running = 0

    async def run(self, requests: Iterable[WorkloadRequest]) -> tuple[list[Answer], float]:
        """Send all, and those that follow them; return the answers and the seconds it took."""
        arrivals = Arrivals(requests, self._vocab_size)
        answers: list[Answer] = []
        unfinished = 0
        changed = asyncio.Event()
        start = perf_counter()

        async def serve(arrival: Arrival) -> None:
            nonlocal unfinished
            answer = Answer(len(arrival.prompt), 0.0)
            answers.append(answer)
            async with self._places:
                answer.at = perf_counter() - start
                await self._ask(arrival, answer)
            if arrival.request.followers and not answer.error:
                tokens = (*arrival.prompt, *answer.token_ids)
                arrivals.follow(arrival.request, perf_counter() - start, tokens)
            self._told()
            unfinished -= 1
            changed.set()

        async with asyncio.TaskGroup() as tasks:
            while True:
                changed.clear()  # before looking: what changes later wakes this up
                for arrival in arrivals.due(perf_counter() - start):
                    unfinished += 1
                    tasks.create_task(serve(arrival))
                next_at = arrivals.next_at
                if next_at is None and not unfinished:
                    return answers, perf_counter() - start
                left = None if next_at is None else max(0.0, next_at - perf_counter() + start)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()

    async def _ask(self, arrival: Arrival, answer: Answer) -> None:
        """Send one request and note what comes."""
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        sent = last = perf_counter()
        try:
            body = self._body(arrival)
            wants_ids = "return_token_ids" in body
            async with aclosing(self._client.events("/v1/completions", body)) as events:
                async for data in events:
                    now = perf_counter()
                    if not wants_ids and _has_only_text(data):
                        if answer.ttft:
                            answer.itls.append(now - last)
                        else:
                            answer.ttft = now - sent
                        last = now
                        continue
                    if data == "[DONE]":
                        break
                    event = json.loads(data)
                    if "error" in event:
                        answer.error = str(event["error"])[:500]
                        return
                    if usage := event.get("usage"):
                        answer.num_output = usage["completion_tokens"]
                        details = usage.get("prompt_tokens_details") or {}
                        answer.num_cached = details.get("cached_tokens")
                    if not event.get("choices"):
                        continue
                    choice = event["choices"][0]
                    answer.token_ids += choice.get("token_ids") or []
                    if not answer.ttft:
                        answer.ttft = now - sent
                    elif choice.get("text"):
                        answer.itls.append(now - last)
                    last = now
                else:
                    raise ServerError("the stream ended without [DONE]")
            answer.latency = last - sent
            if not answer.ttft or not answer.num_output:
                answer.error = "the answer has no token, or does not say how many it has"
        except ServerError as error:
            answer.error = f"{error.status or 'no answer'}: {error}"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            answer.error = f"an event of the answer cannot be read: {error_text(error)}"
        finally:
            self._running -= 1

    def _body(self, arrival: Arrival) -> dict[str, Any]:
        request = arrival.request
        return {
            "model": self._model,
            "prompt": list(arrival.prompt),
            "max_tokens": request.output,
            "temperature": 0.0 if request.n == 1 else 1.0,
            "n": request.n,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if request.followers else {}),
            **({"cache_salt": request.cache_salt} if request.cache_salt else {}),
            **({"priority": request.priority} if request.priority else {}),
            **self._extra,
        }


def _has_only_text(data: str) -> bool:
    """Return whether an event surely is the text of a choice; within a text, quotes are escaped."""
    return (
        '"choices":[{' in data
        and '"text":"' in data
        and '"text":""' not in data
        and '"usage":{' not in data
    )


async def find_model(client: HttpClient, name: str | None) -> tuple[str, int | None]:
    """Return the name of a model that a server has, and how many tokens its sequences may have.

    Args:
        name: ``None``: the first one.

    Returns:
        The name, and ``None`` if the server does not tell.

    Raises:
        ServerError: it cannot be asked for the name.
    """
    try:
        models = (await client.get("/v1/models"))["data"]
    except ServerError:
        if name is None:
            raise
        return name, None
    if name is None:
        name = str(models[0]["id"])
    longest = (each.get("max_model_len") for each in models if each["id"] == name)
    return name, next(longest, None)


def lengths(
    num_input: int | None,
    num_output: int | None,
    num_prefix: int,
    range_ratio: float,
    longest: int | None,
) -> tuple[int, int]:
    """Return the tokens of a prompt and of its answer: those of ``vllm bench serve``, if they fit.

    Args:
        num_input, num_output: what the user wants; that is not changed.
        longest: tokens that a sequence may have; ``None``: it is not known.
    """
    wanted = num_input or _INPUT, num_output or _OUTPUT
    room = longest and int(longest / (1 + range_ratio)) - num_prefix
    if room is None or sum(wanted) <= room or (num_input and num_output):
        return wanted
    own_output = min(_OUTPUT, room - num_input if num_input else room // 9)
    fitted = num_output or max(1, own_output)
    made = num_input or max(1, min(_INPUT, room - fitted)), fitted
    echo(
        f"note: the model takes {longest} tokens, so prompts have {made[0]} and answers {made[1]}; "
        "see --input-len and --output-len",
        err=True,
    )
    return made


async def find_vocab_size(client: HttpClient, model: str) -> int:
    """Return a number of which the server takes all smaller token ids, by trying.

    Raises:
        ServerError: it takes none.
    """
    for size in _VOCABULARIES:
        body = {"model": model, "prompt": [size - 1], "max_tokens": 1}
        try:
            await client.post("/v1/completions", body)
        except ServerError as error:
            if error.status != 400:
                raise
        else:
            return size
    raise ServerError("the server takes no token ids as prompts; name --vocab-size if it does")


def spread(
    firsts: Sequence[WorkloadRequest], rate: float, burstiness: float, seed: int
) -> list[WorkloadRequest]:
    """Return requests that arrive at a rate.

    Args:
        rate: requests a second.
        burstiness: the shape of the gamma distribution of the times between them, as in vLLM: 1 is
            a Poisson process, less comes in bursts, more is more even.
    """
    chance, at = Random(seed), 0.0
    spread_out = []
    for first in firsts:
        spread_out.append(replace(first, at=at))
        at += (
            chance.gammavariate(burstiness, 1 / (rate * burstiness)) if rate != float("inf") else 0
        )
    return spread_out


def random_requests(
    count: int,
    *,
    num_input: int,
    num_output: int,
    num_prefix: int,
    num_prefixes: int,
    range_ratio: float,
    vocab_size: int,
    seed: int,
) -> list[WorkloadRequest]:
    """Return requests as vLLM's data sets ``random`` and ``prefix_repetition`` have them.

    Args:
        num_input: tokens of a prompt behind its prefix.
        num_prefix: tokens of each of ``num_prefixes`` prefixes, which requests take in turn.
        range_ratio: lengths are uniform between ``1 - range_ratio`` and ``1 + range_ratio`` times
            those that are given.

    Raises:
        SettingsError: the ratio is not in [0, 1).
    """
    if not 0 <= range_ratio < 1:
        raise SettingsError(f"--range-ratio must be in [0, 1), not {range_ratio:g}")
    chance = Random(seed)

    def length(middle: int) -> int:
        low, high = int(middle * (1 - range_ratio)), int(middle * (1 + range_ratio))
        return max(1, chance.randint(low, high))

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(chance.randrange(vocab_size) for _ in range(number))

    prefixes = [tokens(num_prefix) for _ in range(num_prefixes)]
    requests = []
    for number in range(count):
        prefix = prefixes[number * num_prefixes // count]
        prompt = (*prefix, *tokens(length(num_input)))
        asked = WorkloadRequest(id=str(number), prompt=(prompt,), output=length(num_output))
        requests.append((asked, None))
    return linked(requests)
