"""``paged-core bench serve``: a load for any server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median, pstdev, quantiles
from typing import Annotated, Any

import typer

from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import echo, print_table
from paged_core.errors import EngineError, SettingsError
from paged_plugins.bench.workloads import LabWorkload
from paged_plugins.command_options import JsonFile, refuse_settings, report
from paged_plugins.http_client import HttpClient, fastest_loop
from paged_plugins.http_load import (
    Answer,
    Load,
    find_model,
    find_vocab_size,
    lengths,
    random_requests,
    spread,
)
from paged_plugins.progress import progress
from paged_plugins.workloads.batch import NAMED
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.request import WorkloadRequest

LATENCIES = ("ttft", "tpot", "itl", "e2el")
TITLES = {
    "ttft": "time to first token",
    "tpot": "time per token after the first",
    "itl": "between two events",
    "e2el": "whole answer",
}


def read_goals(given: Sequence[str]) -> dict[str, float]:
    """Return what ``--goodput ttft:200`` says: milliseconds by latency.

    Raises:
        SettingsError: one is no such goal.
    """
    goals: dict[str, float] = {}
    for text in (part for each in given for part in each.split()):
        name, _, value = text.partition(":")
        try:
            goals[name] = float(value)
        except ValueError:
            goals[name] = -1.0
        if name not in ("ttft", "tpot", "e2el") or goals[name] <= 0:
            raise SettingsError(
                f"--goodput: {text!r:.40} is no goal; write ttft:MS, tpot:MS or e2el:MS"
            )
    return goals


def measures(
    answers: Sequence[Answer], seconds: float, *, goals: Mapping[str, float], shares: Sequence[int]
) -> dict[str, Any]:
    """Return all measures of a run.

    Args:
        goals: milliseconds that a good answer keeps to, by latency.
        shares: percentiles.
    """
    done = [each for each in answers if not each.error]
    num_input, num_output = sum(a.num_prompt for a in done), sum(a.num_output for a in done)
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(answers) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / seconds,
        "request_goodput": sum(_is_good(each, goals) for each in done) / seconds if goals else None,
        "output_throughput": num_output / seconds,
        "total_token_throughput": (num_input + num_output) / seconds,
        "max_output_tokens_per_s": _busiest(done),
    }
    known = [each.num_cached for each in done if each.num_cached is not None]
    found["cached_share"] = sum(known) / num_input if known and num_input else None
    found |= {
        "input_lens": [each.num_prompt for each in answers],
        "output_lens": [each.num_output for each in answers],
        "start_times": [each.at for each in answers],
        "ttfts": [each.ttft for each in answers],
        "itls": [each.itls for each in answers],
        "errors": [each.error for each in answers],
    }
    for name in LATENCIES:
        found |= _summary(name, latencies(done, name), shares)
    return found


def latencies(answers: Sequence[Answer], name: str) -> list[float]:
    """Return the values of a latency in milliseconds; those of ``itl`` of all answers together."""
    if name == "itl":
        return [1000 * gap for each in answers for gap in each.itls]
    if name == "tpot":
        return [1000 * each.tpot for each in answers if each.num_output > 1]
    return [1000 * (each.ttft if name == "ttft" else each.latency) for each in answers]


def _summary(name: str, values: list[float], shares: Sequence[int]) -> dict[str, float | None]:
    if not values:
        names = ("mean", "median", "std", *(f"p{share}" for share in shares))
        return {f"{each}_{name}_ms": None for each in names}
    cuts = quantiles(values * 2 if len(values) == 1 else values, n=100, method="inclusive")
    return {
        f"mean_{name}_ms": fmean(values),
        f"median_{name}_ms": median(values),
        f"std_{name}_ms": pstdev(values),
        **{f"p{share}_{name}_ms": cuts[share - 1] for share in shares},
    }


def _is_good(answer: Answer, goals: Mapping[str, float]) -> bool:
    spent = {"ttft": answer.ttft, "tpot": answer.tpot, "e2el": answer.latency}
    return all(1000 * spent[name] <= most for name, most in goals.items())


def _busiest(answers: Sequence[Answer]) -> float:
    """Return the most tokens that came in one second, each event counting its share of them."""
    by_second: defaultdict[int, float] = defaultdict(float)
    for each in answers:
        at = each.at + each.ttft
        by_second[int(at)] += 1
        rest = (each.num_output - 1) / max(1, len(each.itls))
        for gap in each.itls:
            at += gap
            by_second[int(at)] += rest
    return max(by_second.values(), default=0.0)


_GENERATED = "random", "prefix_repetition"


def serve_command(
    given: SettingsArgs,
    url: Annotated[str, typer.Argument(help="Of the server.")] = "http://127.0.0.1:8000",
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help=f"{', '.join(_GENERATED)}, {', '.join(names())}, or a file of them.",
        ),
    ] = "random",
    num_prompts: Annotated[int | None, typer.Option(min=1, help="Requests (200, or all).")] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(min=0.001, help="Requests a second (as they come)."),
    ] = None,
    burstiness: Annotated[float, typer.Option(min=0.01, help="1: Poisson; less: bursts.")] = 1.0,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests at once, at most.")
    ] = None,
    input_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a prompt (1024, or fewer).")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option(min=1, help="Of its answer (128, or fewer).")
    ] = None,
    prefix_len: Annotated[int, typer.Option(min=0, help="Tokens of a prefix before them.")] = 0,
    num_prefixes: Annotated[int, typer.Option(min=1, help="Prefixes of prefix_repetition.")] = 10,
    range_ratio: Annotated[float, typer.Option(help="Lengths vary by this share.")] = 0.0,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS", help="A good answer keeps to ttft:, tpot:, e2el:MS."),
    ] = None,
    percentiles: Annotated[str, typer.Option(help="Of latencies.")] = "90,99",
    model: Annotated[str | None, typer.Option(help="What requests name; the first one.")] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="Token ids are below it; found by trying.")
    ] = None,
    extra_body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Added to each request.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    label: Annotated[str | None, typer.Option(help="Kept with the results.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    output: JsonFile = None,
) -> int:
    """Send a load to a server and measure what its users would see.

    Greedy, ignoring end-of-sequence tokens, streamed, prompts as token ids. The measures and their
    names in JSON are those of `vllm bench serve`. A key is taken from OPENAI_API_KEY.
    """
    refuse_settings(given, "the server has its own settings; give them to `paged-core serve`")
    goals, shares = read_goals(goodput or ()), _shares(percentiles)
    body = _body(extra_body)
    client = HttpClient(url, api_key=os.environ.get("OPENAI_API_KEY"))

    async def run() -> dict[str, Any]:
        name, longest = await find_model(client, model)
        size = vocab_size or await find_vocab_size(client, name)
        if workload in _GENERATED:
            num_prefix = prefix_len or (256 if workload == "prefix_repetition" else 0)
            num_input, num_output = lengths(input_len, output_len, num_prefix, range_ratio, longest)
            requests = random_requests(
                num_prompts or 200,
                num_input=num_input,
                num_output=num_output,
                num_prefix=num_prefix,
                num_prefixes=1 if workload == "random" else num_prefixes,
                range_ratio=range_ratio,
                vocab_size=size,
                seed=seed,
            )
        else:
            requests = _named(workload, size)[:num_prompts]
        if request_rate is not None:
            requests = spread(requests, request_rate, burstiness, seed)
        total = sum(1 for first in requests for _ in first.family())
        with progress(total, "sending") as advance:
            load = Load(
                client,
                name,
                vocab_size=size,
                max_concurrency=max_concurrency,
                extra=body,
                told=advance,
            )
            answers, seconds = await load.run(requests)
        return {
            "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
            "backend": "openai",
            "endpoint_type": "openai",
            "label": label,
            "model_id": name,
            "workload": workload,
            "num_prompts": total,
            "request_rate": request_rate if request_rate is not None else "inf",
            "burstiness": burstiness,
            "max_concurrency": max_concurrency,
            "max_concurrent_requests": load.most_running,
            **measures(answers, seconds, goals=goals, shares=shares),
        }

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        found = runner.run(run())
    report(found, output, as_json, lambda each: _print(each, shares))
    if found["failed"]:
        first = next(error for error in found["errors"] if error)
        if not found["completed"]:
            raise EngineError(f"all {found['failed']} requests failed, the first with: {first}")
        echo(f"{found['failed']} requests failed, the first with: {first}", err=True)
        return 1
    return 0


def _named(workload: str, vocab_size: int) -> list[WorkloadRequest]:
    """Return the requests of a workload of the benchmarks or of the lab.

    Raises:
        SettingsError: there is none of that name, and no such file.
    """
    if workload in NAMED:
        return NAMED[workload].requests(vocab_size=vocab_size)
    if workload in names() or Path(workload).exists():
        return LabWorkload(workload_spec(workload)).requests(vocab_size=vocab_size)
    known = ", ".join([*_GENERATED, *names()])
    raise SettingsError(
        f"no workload is called {workload!r:.80}, and there is no such file; there are {known}"
    )


def _shares(text: str) -> list[int]:
    try:
        shares = [int(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 100 for share in shares):
        raise SettingsError(f"--percentiles: {text!r:.40} is no list of numbers from 1 to 99")
    return shares


def _body(text: str | None) -> dict[str, Any]:
    try:
        body = json.loads(text or "{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise SettingsError(f"--extra-body: {text!r:.60} is no JSON object")
    return body


def _print(found: dict[str, Any], shares: Sequence[int]) -> None:
    totals = [
        ("requests", f"{found['completed']} answered, {found['failed']} failed"),
        ("seconds", f"{found['duration']:.2f}"),
        ("requests per second", f"{found['request_throughput']:.2f}"),
        ("output tokens per second", f"{found['output_throughput']:.1f}"),
        ("tokens per second, prompts included", f"{found['total_token_throughput']:.1f}"),
        ("requests at once, at most", found["max_concurrent_requests"]),
    ]
    if found["request_goodput"] is not None:
        totals.append(("good requests per second", f"{found['request_goodput']:.2f}"))
    if found["cached_share"] is not None:
        totals.append(("prompt tokens from the cache", f"{100 * found['cached_share']:.1f}%"))
    print_table(f"{found['workload']} on {found['model_id']}", ["", ""], totals)
    columns = ["mean", "median", *(f"p{share}" for share in shares)]
    rows = [
        [TITLES[name], *(_ms(found[f"{column}_{name}_ms"]) for column in columns)]
        for name in LATENCIES
    ]
    print_table("milliseconds", ["", *columns], rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
