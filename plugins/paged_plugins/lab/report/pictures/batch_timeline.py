"""What the batch looked like over time: requests that ran and waited, tokens of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paged_plugins.lab.report.pictures.binned import Binned
from paged_plugins.lab.report.pictures.legend import legend_above
from paged_plugins.lab.report.pictures.picture import Picture, PictureGroup
from paged_plugins.lab.report.pictures.style import BLUE, INK, SKY, VERMILLION, WIDTH, shortened
from paged_plugins.lab.report.pictures.svg import inline_svg, printable
from paged_plugins.lab.runs.run_record import RunRecord, StepSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUESTION = "What did the batch look like?"
HOW_TO_READ = (
    "The first seed. Above: requests that run, and that wait. Below: the tokens that a step"
    " computes, those of prefills on top of those of decodes. Averages over short stretches of"
    " time; all arms of a workload have the same scales."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The batch of one arm over time."""

    times: NDArray[Any]
    running: NDArray[Any]
    waiting: NDArray[Any]
    decode: NDArray[Any]
    prefill: NDArray[Any]

    @staticmethod
    def of(steps: Sequence[StepSample]) -> _Batch:
        """Average steps over stretches of time."""
        binned = Binned(steps)
        return _Batch(
            times=binned.times,
            running=binned.mean(lambda step: step.num_running),
            waiting=binned.mean(lambda step: step.num_waiting + step.num_swapped),
            decode=binned.mean(lambda step: step.decode_tokens),
            prefill=binned.mean(lambda step: step.prefill_tokens),
        )


def batch_timelines(name: str, title: str, records: Mapping[str, RunRecord]) -> PictureGroup:
    """Return a picture per arm, by its label, of one workload."""
    batches = {label: _Batch.of(record.steps) for label, record in records.items() if record.steps}
    every = batches.values()
    most = (
        max((each.times[-1] for each in every), default=0.0),
        max((max(each.running.max(), each.waiting.max()) for each in every), default=0.0),
        max(((each.decode + each.prefill).max() for each in every), default=0.0),
    )
    pictures = [
        _picture(f"{name}-{place}", label, batch, most)
        for place, (label, batch) in enumerate(batches.items())
    ]
    return PictureGroup(title=title, legend=[], pictures=pictures)


def _picture(name: str, label: str, batch: _Batch, most: tuple[float, float, float]) -> Picture:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, 3.4))
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(batch.times, batch.running, color=BLUE, label="running")
    above.plot(
        batch.times, batch.waiting, color=VERMILLION, linestyle=(0, (3, 1.5)), label="waiting"
    )
    below.stackplot(
        batch.times,
        batch.decode,
        batch.prefill,
        colors=[SKY, BLUE],
        labels=["decode", "prefill"],
        linewidth=0,
    )
    below.plot(batch.times, batch.decode, color=INK, linewidth=0.6)
    for axes, largest, what in ((above, most[1], "requests"), (below, most[2], "tokens per step")):
        axes.set_ylim(0, 1.05 * largest or 1)
        axes.set_ylabel(what)
        axes.locator_params(axis="y", nbins=4)
        legend_above(axes)
    above.set_xlim(0, most[0] or 1)
    below.set_xlabel("seconds")
    above.set_title(printable(shortened(label)), loc="left", pad=20)
    text = (
        f"{label}: on average {batch.running.mean():.1f} requests run and"
        f" {batch.waiting.mean():.1f} wait; at most {batch.waiting.max():.1f} wait."
    )
    return Picture(title=label, description=text, svg=inline_svg(figure, name, text))
