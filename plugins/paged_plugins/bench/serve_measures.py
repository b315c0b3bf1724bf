"""Measures of the answers to ``bench serve``: those of ``vllm bench serve``, by its names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev, quantiles
from typing import Any

from paged_core.errors import SettingsError
from paged_plugins.bench.serve_load import Answer

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
