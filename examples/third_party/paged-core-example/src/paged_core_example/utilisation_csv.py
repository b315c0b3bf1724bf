"""An observer that writes the utilisation of each step, for a spreadsheet or a plot."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

from paged_core.engine.contexts import ObserverContext
from paged_core.errors import SettingsError
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.plugins.component import ComponentSettings
from pydantic import Field, PositiveInt

COLUMNS = (
    "step",
    "seconds",
    "running",
    "waiting",
    "swapped",
    "tokens",
    "cached_tokens",
    "used_blocks",
    "utilisation",
    "preempted",
    "finished",
)


class UtilisationCsvSettings(ComponentSettings):
    """Options of :class:`UtilisationCsv`."""

    name: Literal["utilisation_csv"] = "utilisation_csv"
    path: Path = Field(
        default=Path("utilisation.csv"), description="the file to write; it is overwritten"
    )
    every: PositiveInt = Field(default=1, description="write every so many steps")


class UtilisationCsv(Observer):
    """One line per step: lengths of the queues, computed tokens, the share of blocks in use.

    With ``every`` above 1 a line counts all tokens, preemptions and finished requests since the
    last one; the other columns are those of its step. The last line is written by ``close``.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, options: UtilisationCsvSettings, context: ObserverContext, /) -> None:
        self._every = options.every
        self._num_blocks = context.num_blocks
        self._last: StepRecord | None = None
        self._sums = dict.fromkeys(("tokens", "cached_tokens", "preempted", "finished"), 0)
        try:
            options.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = options.path.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise SettingsError(
                f"utilisation_csv.path: cannot write {options.path}: {error}"
            ) from None
        self._table = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        self._table.writeheader()

    def on_step(self, step: StepRecord, /) -> None:
        self._sums["tokens"] += sum(step.scheduled.values())
        self._sums["cached_tokens"] += sum(step.cached.values())
        self._sums["preempted"] += len(step.preempted) + len(step.swapped_out)
        self._sums["finished"] += len(step.finished)
        self._last = step
        if (step.number + 1) % self._every == 0:
            self._write(step)

    def close(self) -> None:
        if self._last is not None:
            self._write(self._last)
        self._file.close()

    def _write(self, step: StepRecord) -> None:
        used = self._num_blocks - step.free_blocks
        self._table.writerow(
            {
                "step": step.number,
                "seconds": f"{step.now:.6f}",
                "running": len(step.queues.running),
                "waiting": len(step.queues.waiting),
                "swapped": len(step.queues.swapped),
                "used_blocks": used,
                "utilisation": f"{used / self._num_blocks:.4f}",
                **self._sums,
            }
        )
        self._sums = dict.fromkeys(self._sums, 0)
        self._last = None
