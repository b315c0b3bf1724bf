"""Third-party packages: built, installed beside ours, listed, used and tested."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
import yaml

from paged_plugins.scaffold.new_plugin import SUMMARIES

pytestmark = pytest.mark.heavy


ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "third_party" / "paged-core-example"
PARTS = {
    ("evictor", "dearest"),
    ("observers", "utilisation_csv"),
}
MADE = {slot: f"made-{slot.replace('_', '-')}" for slot in SUMMARIES}
"""Slots, and packages fresh from the template."""
PROMPTS = ("What is a block table?", "What is preemption?")
MAKE = """
import json, sys
from paged_core.cli import main

for slot, name in json.loads(sys.argv[1]).items():
    assert main(["new-plugin", name, "--slot", slot]) == 0
"""
"""Writes packages from the template, all in one process."""
BUILD = """
import os, sys
from hatchling.build import build_wheel

target, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    build_wheel(target)
"""
"""Builds wheels as pip does, all in one process."""


@dataclass(frozen=True)
class Place:
    """A folder of sources, and the folder that their packages are installed into."""

    sources: Path
    site: Path

    def run(self, *args: str | Path, folder: Path | None = None, bare: bool = False) -> str:
        """Run a Python program where the packages are installed; ``bare``: where they are not."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("PAGED_CORE_", "PYT"))}
        environ |= {"HF_HUB_OFFLINE": "1", "PAGED_CORE_THREADS": "1", "PIP_NO_INDEX": "1"}
        if not bare:
            environ["PYTHONPATH"] = str(self.site)
        done = subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=folder or self.sources,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def paged_core(self, *args: str | Path, folder: Path | None = None, bare: bool = False) -> str:
        """Run ``paged-core``."""
        return self.run("-m", "paged_core", *args, folder=folder, bare=bare)

    def test(self, packages: Sequence[str]) -> None:
        """Run the packages' own tests."""
        options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
        options += ("--import-mode=importlib",)
        self.run("-m", "pytest", *options, *(self.sources / name / "tests" for name in packages))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The example and a fresh plugin for each slot that has a template, built and installed."""
    pytest.importorskip("hatchling", reason="what builds the packages is not installed")
    folder = tmp_path_factory.mktemp("third_party")
    place = Place(folder / "sources", folder / "site-packages")
    copytree(EXAMPLE, place.sources / EXAMPLE.name, ignore=ignore_patterns(".*", "__pycache__"))
    place.run("-c", MAKE, json.dumps(MADE), bare=True)
    wheels = folder / "wheels"
    wheels.mkdir()
    place.run("-c", BUILD, wheels, *sorted(place.sources.iterdir()), bare=True)
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    install = ("install", "--no-deps", "--target", place.site)
    place.run(*pip, *install, *sorted(wheels.iterdir()), bare=True)
    return place


@pytest.fixture(scope="module")
def listed(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.paged_core("plugins", "--json"))
    return found


# ---------------------------------------------------------------------- listed, and not in the way

LISTED: dict[str, tuple[str, str, set[tuple[str, str]]]] = {
    "example": ("paged-core-example", "1.2.0", PARTS)
} | {
    name.replace("-", "_"): (name, "0.1.0", {(slot, name.replace("-", "_"))})
    for slot, name in MADE.items()
}
"""Distribution, version and components of each plugin."""


@pytest.mark.parametrize("name", LISTED)
def test_a_plugin_is_listed_with_its_components(name: str, listed: dict[str, Any]) -> None:
    distribution, version, parts = LISTED[name]
    (plugin,) = (one for one in listed["plugins"] if one["name"] == name)
    own = [one for one in listed["components"] if one["plugin"] == name]
    assert (plugin["distribution"], plugin["version"]) == (distribution, version)
    assert {plugin["status"], *(one["status"] for one in own)} == {"active"}
    assert {(one["slot"], one["name"]) for one in own} == parts
    assert not any(one["default"] for one in own)
    assert all(one["summary"] and one["options"]["properties"] for one in own)


def test_listing_fresh_plugins_imports_nothing_heavy(place: Place) -> None:
    program = (
        "import sys; from paged_core.cli import main; main(['plugins'])\n"
        "assert 'made_attention.made_attention' in sys.modules\n"
        "assert not {'torch', 'transformers', 'starlette', 'msgspec'} & set(sys.modules)"
    )
    place.run("-c", program)


def test_installing_activates_nothing(place: Place, tmp_path: Path) -> None:
    scenario = tmp_path / "tight.yaml"
    scenario.write_text(
        "name: tight\nsettings: {num_blocks: 6}\nrequests:\n"
        "  - {id: A, prompt: 30, output: 9}\n  - {id: B, prompt: 30, output: 6}\n"
        "  - {id: C, step: 2, prompt: 20, output: 4}\n",
        "utf-8",
    )
    program = (
        "import sys; from paged_core.cli import main\n"
        "assert main(['config', '--json']) == main(['replay', sys.argv[1], '--json']) == 0"
    )
    assert place.run("-c", program, scenario) == place.run("-c", program, scenario, bare=True)


# ---------------------------------------------------------------------- used by name


def test_the_example_runs_by_yaml_and_the_text_stays(place: Place, tmp_path: Path) -> None:
    config = EXAMPLE / "engine.yaml"
    small = ("--block-size", "4", "--num-blocks", "24", "--log-level", "error")
    args = ("generate", *PROMPTS, "--max-tokens", "24", "--json", *small)
    ours = place.paged_core(*args, folder=tmp_path)
    assert not any(tmp_path.iterdir())
    theirs = place.paged_core(*args, "--config", config, folder=tmp_path)
    assert theirs == ours
    assert len(theirs.splitlines()) == len(PROMPTS)
    (written,) = tmp_path.iterdir()
    header, *lines = written.read_text("utf-8").splitlines()
    assert written.name == "utilisation.csv"
    assert header.startswith("step,seconds,running,waiting,swapped,tokens")
    assert len(lines) > 5


def test_fresh_plugins_run_by_yaml_together(place: Place, tmp_path: Path) -> None:
    """Each has an ``engine.yaml`` that names it; here all of them are in one file."""
    settings: dict[str, Any] = {}
    for slot, name in MADE.items():  # beside its own slot one may name another, which asks it
        given = yaml.safe_load((place.sources / name / "engine.yaml").read_text("utf-8"))
        settings = {**given, **settings, **{key: given[key] for key in given if key == slot}}
    del settings["replicas"]  # an LLM has one engine
    config = tmp_path / "engine.yaml"
    config.write_text(json.dumps(settings), "utf-8")
    prompts = json.dumps([[1, 2, 3, 4, 5, 6, 7, number] for number in range(6)])
    program = (
        "import json, sys; from paged_core import LLM, SamplingParams\n"
        "with LLM.from_config(*sys.argv[2:], executor='memory', num_blocks=12, block_size=4,\n"
        "                     max_model_len=64) as llm:\n"
        "    prompts = json.loads(sys.argv[1])\n"
        "    for out in llm.generate(prompts, SamplingParams(max_tokens=12)):\n"
        "        print(out.outputs[0].token_ids)\n"
    )
    default = tmp_path / "default.yaml"
    default.write_text("", "utf-8")
    ours = place.run("-c", program, prompts, default, folder=tmp_path, bare=True)
    theirs = place.run("-c", program, prompts, config, folder=tmp_path)
    assert theirs == ours
    assert theirs.count("\n") == 6
    counts = json.loads((tmp_path / "made_observers.json").read_text("utf-8"))
    assert (counts["added"], counts["finished"]) == (6, 6)


@pytest.mark.parametrize(
    "slot",
    [
        "attention",
        *(pytest.param(slot, marks=pytest.mark.long) for slot in ("runner", "executor")),
        *(pytest.param(slot, marks=pytest.mark.long) for slot in ("router", "cost_model")),
    ],
)
def test_a_fresh_plugin_is_used_as_its_readme_says(slot: str, place: Place) -> None:
    folder = place.sources / MADE[slot]
    (usage,) = (
        line
        for line in (folder / "README.md").read_text("utf-8").splitlines()
        if line.startswith("paged-core ") and "--config" in line
    )
    few = ["--max-tokens", "3"] if "generate" in usage else ["--json"]
    assert place.paged_core(*shlex.split(usage)[1:], *few, folder=folder)


# ---------------------------------------------------------------------- tested with the kit


def test_the_example_passes_its_own_tests(place: Place) -> None:
    place.test([EXAMPLE.name])


@pytest.mark.parametrize(
    "name",
    [
        MADE["victim"],
        *(
            pytest.param(name, marks=pytest.mark.long)
            for slot, name in MADE.items()
            if slot != "victim"
        ),
    ],
)
def test_a_fresh_plugin_passes_its_own_tests(name: str, place: Place) -> None:
    place.test([name])
