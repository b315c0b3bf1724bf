"""The settings that serve a workload best, by Optuna (`pip install optuna`)."""

import optuna

from paged_core.plugins.registry import Registry
from paged_core.settings import settings_class
from paged_plugins.lab.results.results import run_study
from paged_plugins.lab.statistics.comparison import Comparison, print_differences
from paged_plugins.lab.study.arms import BASE, Arm, PlannedArm
from paged_plugins.lab.study.study import Study
from paged_plugins.lab.tasks.pool import open_runner
from paged_plugins.workloads.named import workload_spec

registry, workload, goal = Registry.discover(), workload_spec("chat"), "e2e_ms_mean"


def arm(label: str, **changed: object) -> PlannedArm:
    settings = settings_class(registry)(executor="simulated", num_blocks=128, **changed)
    return PlannedArm(Arm(label=label, changes=changed), settings)


def compared(arms: list[PlannedArm], seeds: range) -> Comparison:
    with open_runner(registry, workers=1) as runner:
        study = Study(arms=arms, workloads=[workload], seeds=seeds)
        return Comparison.of(run_study(study, runner), [goal])


def objective(trial: optuna.Trial) -> float:
    evictor = trial.suggest_categorical("evictor", ["lru", "slru", "mru", "lfu"])
    most = trial.suggest_int("max_num_seqs", 4, 64, log=True)
    tried = arm("tried", evictor=evictor, scheduler={"name": "token_budget", "max_num_seqs": most})
    trial.set_user_attr("arm", tried.arm.changes)
    return compared([tried], range(2)).results.mean("tried", workload.name, goal)


search = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
search.optimize(objective, n_trials=12)
found = arm("found", **search.best_trial.user_attrs["arm"])
print_differences(compared([arm(BASE), found], range(100, 106)), str(found.arm.changes))
