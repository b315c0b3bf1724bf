"""How to read a report, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterator

from paged_core.cli.output import show
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.statistics.simultaneous import minimum_seeds
from paged_plugins.progress import counted


def notes(results: Results, confidence: float, num_differences: int) -> Iterator[str]:
    """Yield what a reader must know of the runs, the intervals and the claims."""
    num_seeds = len(results.seeds)
    missing = len(results.arms) * len(results.workloads) * num_seeds - len(results.runs)
    if missing:
        yield (
            f"{counted(missing, 'run')} failed or were left out: a difference is of the seeds that"
            " both arms have."
        )
    yield (
        f"Every arm served the same requests with the same {counted(num_seeds, 'seed')}. A"
        " difference is taken within each seed, then averaged."
    )
    if told := _simulation(results):
        yield told
    if num_seeds < 2:
        yield "One seed bounds nothing: there are no intervals, and no claim is made."
    else:
        yield _interval(confidence, num_differences)
        yield _claim(num_seeds, minimum_seeds(confidence))


def _interval(confidence: float, num_differences: int) -> str:
    percent = f"{100 * confidence:g}%"
    return (
        f"[low, high] is the {percent} confidence interval of a difference, by a bootstrap over"
        f" seeds. It is corrected for the number of comparisons: with {percent} confidence all"
        f" {num_differences:,} intervals of this report hold at once."
    )


def _claim(num_seeds: int, enough: int) -> str:
    if num_seeds < enough:
        return f"A claim needs {enough} seeds: with {num_seeds}, nothing is said to have moved."
    return (
        "A measure has moved if its interval leaves out 0; then it is called better or worse, and"
        " set in bold. One that has not moved need not be equal: the interval says how large a"
        " difference may have been missed."
    )


def _simulation(results: Results) -> str:
    """Return where simulated times come from; empty: they are real, or nothing is known of it."""
    settings = results.manifest.get("settings", {}).get(results.arms[0].label, {})
    if settings.get("executor", {}).get("name") != "simulated":
        return ""
    model = settings.get("cost_model") or {}
    options = ", ".join(f"{key} {show(value)}" for key, value in model.items() if key != "name")
    return (
        f"Times are those of a simulation: a step takes what cost model {model.get('name')}"
        f" ({options}) predicts. Intervals are of the draw of requests, not of the prediction."
    )
