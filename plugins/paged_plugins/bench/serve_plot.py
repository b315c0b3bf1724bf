"""A picture of what ``bench serve`` measured."""

from __future__ import annotations

from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from paged_core.errors import SettingsError

_FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path | None) -> None:
    """Say before anything is measured that a picture could not be drawn.

    Raises:
        SettingsError: matplotlib is not installed, or the file has no ending that it writes.
    """
    if path is None:
        return
    if path.suffix.lower() not in _FORMATS:
        raise SettingsError(f"--plot: {path} ends in none of {', '.join(_FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingsError(
            "--plot needs matplotlib, which is not installed: `pip install paged-core[lab]`"
        ) from None


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw the latencies of a run, and the tokens that came, over its time."""
    from matplotlib.figure import Figure

    done = [place for place, error in enumerate(found["errors"]) if not error]
    starts = [found["start_times"][place] for place in done]
    ttfts = [found["ttfts"][place] for place in done]
    gaps = [found["itls"][place] for place in done]
    figure = Figure(figsize=(9, 6), layout="constrained")
    over_time, arrived, first, between = figure.subplots(2, 2).flat
    over_time.plot(starts, [1000 * each for each in ttfts], ".", markersize=3)
    over_time.set(title="Time to first token", xlabel="sent after s", ylabel="ms", ylim=(0, None))
    moments = sorted(
        chain.from_iterable(
            accumulate(rest, initial=start + ttft)
            for start, ttft, rest in zip(starts, ttfts, gaps, strict=True)
        )
    )
    arrived.plot(moments, range(1, len(moments) + 1))
    arrived.set(title="Events with tokens", xlabel="s", ylabel="so far", ylim=(0, None))
    for axes, values, title in (
        (first, ttfts, "Time to first token"),
        (between, list(chain.from_iterable(gaps)), "Between two events"),
    ):
        ordered = sorted(1000 * each for each in values)
        axes.plot(ordered, [(place + 1) / len(ordered) for place in range(len(ordered))])
        axes.set(title=title, xlabel="ms", ylabel="share of them", ylim=(0, 1))
    for axes in (over_time, arrived, first, between):
        axes.grid(alpha=0.3)
    figure.suptitle(f"{found['workload']} on {found['model_id']}")
    figure.savefig(path)
