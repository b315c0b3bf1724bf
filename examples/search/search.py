"""A program that writes policies: the conformance kit refuses what is wrong, the lab judges.

python examples/search/search.py evictor --workload chat --set num_blocks=128 --goal hit_rate

Scores are grown at random and bred from the best (genetic programming; Koza, 1992), each tried on
few seeds first (successive halving; Jamieson and Talwalkar, 2016).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from math import inf, log2
from pathlib import Path
from random import Random
from statistics import fmean

import yaml
from slots import FIELDS, KITS, written

from paged_core.plugins.registry import Registry
from paged_core.settings import settings_class
from paged_plugins.lab.measures import MEASURES, value_text
from paged_plugins.lab.results.results import Results, run_study
from paged_plugins.lab.statistics.comparison import Comparison, print_differences
from paged_plugins.lab.study.arms import Arm, PlannedArm, layer
from paged_plugins.lab.study.study import Study
from paged_plugins.lab.tasks.pool import open_runner
from paged_plugins.workloads.named import workload_spec

SHAPES = "{} + {}|{} - {}|{} * {}|{} / {}|max({}, {})|min({}, {})|log2({})|{} if {} > {} else {}"
LONGEST, ELITE, PLAIN = 84, 8, (0, 1, 7, 500)
"""Characters of a score; policies from which new ones are bred; values that a score must bear."""
FIRST, TRAINING, HELD_OUT = range(2), range(6), range(1000, 1012)
"""Seeds on which all are tried, and the better third; and those that decide."""
Tree = str | tuple  # a number, a field, or a shape and its parts


def grown(random: Random, fields: Sequence[str], depth: int = 3) -> Tree:
    """Return a random score."""
    if depth == 0 or random.random() < 0.25:
        is_field = random.random() < 0.75
        return random.choice(fields) if is_field else f"{2 ** random.uniform(-3, 10):.2g}"
    shape = random.choice(SHAPES.split("|"))
    return shape, *(grown(random, fields, depth - 1) for _ in range(shape.count("{}")))


def text(tree: Tree) -> str:
    """Return a score as Python."""
    made = tree if isinstance(tree, str) else tree[0].format(*map(text, tree[1:]))
    return f"({made})" if tree[0].startswith("{") else made


def parts(tree: Tree) -> list[Tree]:
    inner = () if isinstance(tree, str) else tree[1:]
    return [tree, *(each for part in inner for each in parts(part))]


def bred(random: Random, tree: Tree, other: Tree, fields: Sequence[str]) -> Tree:
    """Return a score of which a part is new, or of another score, or a number is moved."""
    if isinstance(tree, tuple) and random.random() < 0.8:
        at = random.randrange(1, len(tree))
        return *tree[:at], bred(random, tree[at], other, fields), *tree[at + 1 :]
    with suppress(ValueError, TypeError):
        return f"{float(tree) * 2 ** random.gauss(0, 1):.2g}"
    return random.choice((random.choice(parts(other)), grown(random, fields, 2)))


class Lab:
    """Writes policies and measures them by name."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.registry = given, Registry.discover()
        self.sign = -1 if MEASURES[given.goal].better == "lower" else 1
        self.settings = yaml.safe_load("\n".join(each.replace("=", ": ", 1) for each in given.set))
        self.folder = given.output.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(self.folder))
        self.log = self.folder / "measured.jsonl"
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        whole = [line for line in lines if line.endswith("\n")]  # the last may be cut off
        self.known = dict(map(json.loads, whole))
        self.log.write_text("".join(whole))
        asked = f"{given.slot} of {given.workload}, {given.goal}, {given.set}"
        if (before := self.known.get("asked", asked)) != asked:
            sys.exit(f"{self.folder} has a search for {before}; choose another --output")
        self.keep("asked", asked)

    def keep(self, key: str, value: float | str) -> None:
        """Keep what was measured, also for a search that goes on."""
        if key not in self.known:
            self.known[key] = value
            with self.log.open("a") as file:
                file.write(json.dumps([key, value]) + "\n")

    def write(self, score: str, about: str = "") -> str:
        """Write a policy and return its name."""
        name = f"found_{sha256(score.encode()).hexdigest()[:8]}"
        (self.folder / f"{name}.py").write_text(written(self.given.slot, name, score, about))
        return name

    def run(self, names: Sequence[str], seeds: Sequence[int], workload: str) -> Results:
        """Serve the same requests with each component; the others are compared with the first."""
        slot, arms = self.given.slot, []
        new = [import_module(each).COMPONENT for each in names if each.startswith("found_")]
        registry = self.registry.extended(*new)
        for name in names:
            values = {"executor": "simulated", **(self.settings or {}), slot: name}
            made, _ = settings_class(registry).from_layers([layer(values)])
            arms.append(PlannedArm(Arm(label=name, axis=slot, compared_with=names[0]), made))
        study = Study(arms=arms, workloads=[workload_spec(workload)], seeds=seeds)
        with open_runner(registry, workers=self.given.workers) as runner:
            return run_study(study, runner)

    def judge(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        """Measure policies with the seeds with which that was not done."""
        places = [(n, seed) for n in names for seed in seeds if f"{n} {seed}" not in self.known]
        if places:
            names, seeds = (list(dict.fromkeys(each)) for each in zip(*places, strict=True))
            results, goal = self.run(names, seeds, self.given.workload), self.given.goal
            for run in results.runs:
                can = goal in run.measures and run.arm not in results.failures
                if (run.arm, run.seed) in places:
                    self.keep(
                        f"{run.arm} {run.seed}", self.sign * run.measures[goal] if can else -inf
                    )

    def score(self, name: str, seeds: Sequence[int]) -> float:
        """Return how good a policy is; the highest is the best."""
        return fmean(self.known.get(f"{name} {seed}", -inf) for seed in seeds)

    def check(self, name: str) -> None:
        """Keep what the kit finds wrong with a policy; empty: nothing."""
        kit, test = KITS[self.given.slot], self.folder / f"test_{name}.py"
        imported = f"from {name} import COMPONENT\nfrom paged_testing import {kit}, registry_with"
        test.write_text(
            f"{imported}\n\n\nclass TestFound({kit}):\n    component = {name!r}\n\n"
            "    def make_registry(self):\n        return registry_with(COMPONENT)\n"
        )
        command = [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", test.name]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        wrong = (done.stdout or done.stderr).splitlines()[-3:]
        self.keep(name, wrong[0] if done.returncode else "")


def search(lab: Lab, generations: int, population: int) -> list[str]:
    """Return policies that the kit does not refuse, the best in training first."""
    random, slot = Random(lab.given.seed), lab.given.slot
    seen: dict[str, tuple[Tree, str]] = {}
    best: list[str] = []
    for generation in range(generations):
        new: list[str] = []
        while len(new) < population:
            tree = grown(random, FIELDS[slot])
            if best and random.random() < 0.8:
                tree, other = (seen[random.choice(best)][0] for _ in range(2))
                tree = bred(random, tree, other, FIELDS[slot])
            score = f"[{text(tree)}]" if slot == "evictor" and random.random() < 0.5 else text(tree)
            with suppress(ArithmeticError, ValueError):  # such as log2(0): not worth a run
                [eval(score, {"log2": log2}, dict.fromkeys(FIELDS[slot], each)) for each in PLAIN]
                if len(score) <= LONGEST and (name := lab.write(score)) not in seen:
                    seen[name] = tree, score
                    new.append(name)
        lab.judge(new, FIRST)
        behaviours = {lab.score(name, FIRST): name for name in reversed([*best, *new])}
        able = [behaviours[value] for value in sorted(behaviours, reverse=True)]
        able = [name for name in able if name in new][: population // 3]
        lab.judge(able, TRAINING)
        ranked = sorted({*best, *able}, key=lambda name: (-lab.score(name, TRAINING), name))
        ranked = [name for name in ranked if lab.score(name, TRAINING) > -inf]
        while wrong := [name for name in ranked[:ELITE] if lab.known.get(name, "not checked")]:
            with ThreadPoolExecutor(lab.given.workers) as pool:
                list(pool.map(lab.check, [name for name in wrong if name not in lab.known]))
            for name in filter(lab.known.get, wrong):
                print(f"the kit refuses {seen[name][1]}: {lab.known[name]}")
                ranked.remove(name)
        best = ranked[:ELITE]
        if best:
            value = lab.sign * lab.score(best[0], TRAINING)
            print(f"generation {generation + 1}: {value:.5g} {seen[best[0]][1]}", flush=True)
    return [seen[name][1] for name in best]


def main(argv: Sequence[str] | None = None) -> int:
    """Search, and print the best policy with its figures; return 0 if it beats what is shipped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("slot", choices=FIELDS)
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--held-out", help="a workload; default: fresh draws of the same")
    parser.add_argument("--goal", default="hit_rate", choices=MEASURES)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=Path("search-results"))
    for name, value in {"seed": 0, "generations": 12, "population": 24, "workers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    lab = Lab(given := parser.parse_args(argv))
    shipped = [name for name in lab.registry.of(given.slot) if name != "belady"]  # which cheats
    lab.judge(shipped, TRAINING)
    best = max(shipped, key=lambda name: lab.score(name, TRAINING))
    print(f"best shipped: {lab.sign * lab.score(best, TRAINING):.5g} {best}", flush=True)
    found = search(lab, given.generations, given.population)
    if not found:
        sys.exit("nothing was found that the kit does not refuse")
    name, about = lab.write(found[0]), f":\n\n{given.goal}"
    draws = {"training": (TRAINING, given.workload), "held out": (HELD_OUT, given.held_out)}
    for where, (seeds, workload) in draws.items():
        results = lab.run([name, *shipped], seeds, workload or given.workload)
        told = Comparison.of(results, [given.goal])  # of what is shipped with what was found
        print_differences(told, f"\n{where}")
        rival = max(told.differences, key=lambda each: lab.sign * each.value)
        about += f"\n{where} {value_text(given.goal, rival.base)}; the best shipped, {rival.arm}, "
        about += f"{rival.change_text} {rival.interval_text}"
    lab.write(found[0], about)
    print("", (lab.folder / f"{name}.py").read_text(), sep="\n")
    has_won = all(each.verdict == "worse" for each in told.differences)
    print(f"{name} beats all that is shipped" if has_won else "nothing beats all that is shipped")
    return 0 if has_won else 1


if __name__ == "__main__":
    sys.exit(main())
