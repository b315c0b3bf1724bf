"""The picture of served times against simulated ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paged_plugins.lab.fidelity.fidelity import Judged
from paged_plugins.lab.report.drawing import STYLES, drawing, milliseconds
from paged_plugins.written_files import replacing

_KINDS = {"tpot_ms": "time per token", "ttft_ms": "time to first token"}


def draw(judged: Sequence[Judged], path: Path) -> None:
    """Write a picture, in the format that the file's name ends in: a point for each row.

    Raises:
        SettingsError: matplotlib is not installed.
        WriteFailed: the file cannot be written.
    """
    simulated = [each for each in judged if "measured" in each.found]
    engines = sorted({each.row.engine for each in simulated})
    with drawing():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 4.5))
        for place, (kind, title) in enumerate(_KINDS.items()):
            axes = figure.add_subplot(1, 2, place + 1)
            for engine, style in zip(engines, STYLES[1:], strict=False):
                points = [each for each in simulated if each.row.engine == engine]
                axes.plot(
                    [getattr(each.row, kind) for each in points],
                    [getattr(each.found["measured"], kind) for each in points],
                    color=style.color,
                    marker=style.marker,
                    linestyle="none",
                    markersize=3.5,
                    alpha=0.6,
                    label=engine,
                )
            axes.axline((1, 1), slope=1, color="grey", linewidth=1)
            milliseconds(axes)
            milliseconds(axes, "y")
            axes.set(title=title, xlabel="served", ylabel="simulated")
            axes.legend()
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix.lstrip(".") or "svg", dpi=150)
