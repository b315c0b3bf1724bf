"""Says how often the components that arms vary were asked, and which never were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Final

from paged_plugins.decision_count import DecisionCount
from paged_plugins.lab.results.results import Results
from paged_plugins.lab.study.arms import settings_text

_WORDS: Final = {
    "admission": ("requests", "no request would have been refused or held back"),
    "scheduler": ("steps", "no step left anything for a later one"),
    "queue_order": ("admissions", "the queue never held two requests"),
    "victim": ("preemptions", "no two requests could have been preempted"),
    "preemption": ("preemptions", "nothing was preempted"),
    "evictor": ("evictions", "nothing was evicted while two blocks could be"),
    "router": ("requests", "no request could go to two replicas"),
    "length_predictor": ("predictions", "no other component asks for lengths"),
}
"""By slot, what is decided, and why there never was a choice."""
COLUMNS: Final = ("arm", "workload", "decides", "a run", "with a choice", "not as baseline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Decisions of one component of an arm on one workload, over all seeds."""

    arm: str
    workload: str
    slot: str
    count: DecisionCount
    never: str | None
    """Sentence: it never had a choice; ``None``: it had one, or is what others differ from."""
    row: Sequence[str]
    """Its :data:`COLUMNS`, of one run; empty: no arm that is compared had a choice."""

    def document(self) -> dict[str, Any]:
        """Return it as plain data; counts are sums over the seeds."""
        told = {"arm": self.arm, "workload": self.workload, "slot": self.slot}
        return told | asdict(self.count) | {"never": self.never}

    @property
    def told(self) -> str:
        """The row as a sentence."""
        arm, workload, noun, number, choices, differed = self.row
        shared = "." if differed == "-" else f", {differed} not as the baseline's would decide."
        return f"{arm} on {workload}: {number} {noun} a run, {choices} with a choice{shared}"


def asked(results: Results) -> Iterator[Asked]:
    """Yield what was asked of components that arms vary, where it was watched and none failed."""
    for arm, workload, slot in product(results.arms, results.workloads, _WORDS):
        own = {
            key: value
            for key, value in arm.changes.items()
            if arm.axis in (None, key) and key.partition(".")[0] == slot
        }
        count, base = (
            _counted(results, label, workload, slot) for label in (arm.label, arm.compared_with)
        )
        if not own or count is None or arm.label in results.failures:
            continue
        (noun, why), never, row = _WORDS[slot], None, list[str]()
        if count.choices or (base and base.choices):
            num_runs = len(results.runs_of[arm.label, workload])
            a_run = [f"{each / num_runs:,.4g}" for each in (count.decisions, count.choices)]
            share = count.differed / max(1, count.compared)
            differed = f"{share:.0%} of {count.compared:,}" if count.compared else "-"
            effects = [f"{each / num_runs:+,.4g} {name}" for name, each in count.effects.items()]
            differed += f" ({', '.join(effects)})" if effects else ""
            row = [arm.label, workload, noun, *a_run, differed]
        elif arm.label != arm.compared_with:
            told = f"never had a choice in {count.decisions:,} {noun}"
            told = told if count.decisions else "was never asked"
            never = (
                f"{workload}: {settings_text(own)} {told}: {why}, so that it makes no difference"
            )
            never += f"; {remedy}" if (remedy := results.remedies.get((workload, slot))) else ""
        yield Asked(arm=arm.label, workload=workload, slot=slot, count=count, never=never, row=row)


def _counted(results: Results, arm: str, workload: str, slot: str) -> DecisionCount | None:
    """Return the decisions of an arm over all seeds; ``None``: they were not watched."""
    runs = results.runs_of.get((arm, workload), ())
    counts = [each for run in runs if (each := run.facts.asked.get(slot)) is not None]
    return sum(counts, DecisionCount()) if counts else None
