"""An ablation with its arms and runs worked out, ready to be run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_plugins.files import read_file
from paged_plugins.lab.study.ablation import SIMULATED, Ablation, parse_ablation
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.tasks.task import Task
from paged_plugins.progress import MANY, counted, progress


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run for an ablation."""

    ablation: Ablation
    text: str
    """Of the file that describes it."""
    source: Path
    arms: Sequence[PlannedArm]
    """The base first."""

    def tasks(self) -> Iterator[Task]:
        """Yield every run: all arms on one workload with one seed before the next ones."""
        for seed in self.ablation.seeds:
            for workload in self.ablation.workloads:
                for one in self.arms:
                    yield Task(
                        arm=one.arm.label, settings=one.settings, workload=workload, seed=seed
                    )

    @property
    def is_real(self) -> bool:
        """Whether an arm runs a model, so that its times are those of this machine."""
        return any(one.settings.executor.name != SIMULATED for one in self.arms)

    def __str__(self) -> str:
        counts = {
            "arm": len(self.arms),
            "workload": len(self.ablation.workloads),
            "seed": len(self.ablation.seeds),
        }
        parts = (counted(count, noun) for noun, count in counts.items())
        return f"{counted(prod(counts.values()), 'run')}: {' x '.join(parts)}"


def read_plan(path: Path, registry: Registry) -> Plan:
    """Read an ablation and check the settings of all of its arms.

    Raises:
        SettingsError: the file or an arm is wrong; the message says where.
    """
    text = read_file(path)
    ablation = parse_ablation(text, path)
    try:
        with progress(ablation.most_arms, "checking arms", least=MANY) as advance:
            arms = ablation.arms(registry, advance)
    except SettingsError as error:
        raise SettingsError(f"{path}: {'; '.join(str(error).splitlines())}") from None
    return Plan(ablation, text, path, arms)
