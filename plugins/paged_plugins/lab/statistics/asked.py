"""Says how often the components that arms vary were asked, and which never were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from paged_core.cli.output import echo, print_table
from paged_plugins.decision_count import DecisionCount
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.study.arms import settings_text

_WORDS: Final = {
    "scheduler": ("steps", "no step left anything for a later one"),
    "queue_order": ("admissions", "the queue never held two requests"),
    "victim": ("preemptions", "no two requests could have been preempted"),
    "preemption": ("preemptions", "nothing was preempted"),
    "evictor": ("evictions", "nothing was evicted while two blocks could be"),
    "router": ("requests", "no request could go to two replicas"),
}
"""By slot, what is decided, and why there never was a choice."""
_COLUMNS = ("arm", "workload", "decides", "a run", "with a choice", "not as baseline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Decisions of one component of an arm on one workload, over all seeds."""

    arm: str
    workload: str
    slot: str
    component: str
    """As the arm sets it: ``evictor=slru``."""
    count: DecisionCount
    num_runs: int
    had_choice: bool
    """True if it, or that of the arm that it is compared with, had a choice."""
    is_base: bool
    remedy: str
    """The load or cache that would ask it; empty: not known."""

    @property
    def sentence(self) -> str | None:
        """Say that it never had a choice; ``None``: it had one, or is what others differ from."""
        if self.had_choice or self.is_base:
            return None
        decisions, why = _WORDS[self.slot]
        asked = "was never asked"
        if self.count.decisions:
            asked = f"never had a choice in {self.count.decisions:,} {decisions}"
        told = f"{self.workload}: {self.component} {asked}: {why}, so that it makes no difference"
        return f"{told}; {self.remedy}" if self.remedy else told

    @property
    def row(self) -> list[str]:
        """Return it as a row of the table, whose numbers are of one run."""
        count = self.count
        a_run = [f"{each / self.num_runs:,.4g}" for each in (count.decisions, count.choices)]
        differed = "-"
        if count.compared:
            differed = f"{count.differed / count.compared:.0%} of {count.compared:,}"
        return [self.arm, self.workload, _WORDS[self.slot][0], *a_run, differed]

    def document(self) -> dict[str, Any]:
        """Return it as plain data; counts are sums over the seeds."""
        told = {"arm": self.arm, "workload": self.workload, "slot": self.slot}
        return told | asdict(self.count) | {"never": self.sentence}


def asked(results: Results) -> Iterator[Asked]:
    """Yield what was asked of the components that arms vary, where it was watched."""
    for arm in results.arms:
        varied = {k: v for k, v in arm.changes.items() if arm.axis in (None, k)}
        for workload in results.workloads:
            for slot in _WORDS:
                own = {k: v for k, v in varied.items() if k.partition(".")[0] == slot}
                count, base = (
                    _counted(results, label, workload, slot)
                    for label in (arm.label, arm.compared_with)
                )
                if own and count is not None:
                    yield Asked(
                        arm=arm.label,
                        workload=workload,
                        slot=slot,
                        component=settings_text(own),
                        count=count,
                        num_runs=len(results.runs_of[arm.label, workload]),
                        had_choice=any(each.choices for each in (count, base) if each),
                        is_base=arm.label == arm.compared_with,
                        remedy=results.remedies.get((workload, slot), ""),
                    )


def _counted(results: Results, arm: str, workload: str, slot: str) -> DecisionCount | None:
    """Return the decisions of an arm over all seeds; ``None``: they were not watched."""
    asked = (each.facts.asked for each in results.runs_of.get((arm, workload), ()))
    runs = [each[slot] for each in asked if slot in each]
    total = DecisionCount()
    for each in runs:
        total.add(each)
    return total if runs else None


def never_asked(found: Sequence[Asked]) -> list[str]:
    """Return a sentence for each component that never had a choice."""
    return list(dict.fromkeys(each.sentence for each in found if each.sentence is not None))


def print_asked(found: Sequence[Asked]) -> None:
    """Print how often each component was asked in a run, and say which never had a choice."""
    for sentence in never_asked(found):
        echo(sentence)
    if rows := [each.row for each in found if each.had_choice]:
        print_table("", _COLUMNS, rows)
        echo("")


def rows_told(found: Sequence[Asked]) -> Iterator[str]:
    """Yield the rows of the table as sentences."""
    for arm, workload, noun, number, choices, differed in (e.row for e in found if e.had_choice):
        shared = "." if differed == "-" else f", {differed} not as the baseline's would decide."
        yield f"{arm} on {workload}: {number} {noun} a run, {choices} with a choice{shared}"
