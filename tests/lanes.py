"""The lanes of the tests: which of them a change needs at once.

A test that is in no lane is in the *core lane*, and always runs. The other lanes hold what is heavy
and what few changes can break: each names its tests, and the changed files that select it.
`make test` runs the core lane and the selected lanes, `make test-rest` exactly the others, and
`make test-all` everything; `.ci/run` runs the first two. A changed test file runs in any case.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import EMULATED, SETS, available, find_compiler

ROOT = Path(__file__).parents[1]
EVERYTHING = ("pyproject.toml", "constraints.txt", "tests/conftest.py", "tests/lanes.py")
"""Files that select all lanes."""
MAIN = "origin/main"
INHERITED = "inherited"
INSTRUCTION_SETS = "instruction-sets"

Wanted = Literal["all", "changed", "rest"]
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True, slots=True)
class Lane:
    """Tests that run if one of some files has changed."""

    tests: tuple[str, ...]
    """Patterns of test files below ``tests``, or of classes and functions in them:
    ``unit/test_x.py``, ``unit/test_x.py::TestThing``, ``unit/test_x.py::test_*_thing``."""
    paths: tuple[str, ...]
    """Patterns of files of the repository; ``*`` matches folders, too."""

    def holds(self, test: str) -> bool:
        """Return whether a file or a test, by its name without parameters, is in this lane."""
        return any(
            fnmatchcase(test, pattern) or fnmatchcase(test, f"{pattern}::*")
            for pattern in self.tests
        )

    def selected_by(self, path: str) -> bool:
        """Return whether a change of this file selects the lane."""
        return any(fnmatchcase(path, pattern) for pattern in (*self.paths, *EVERYTHING))


LANES = {
    "triton": Lane(  # the interpreter executes kernels element by element
        tests=("*/test_triton_*.py", "gpu/test_attention.py"),
        paths=(
            "backends/paged_backends/kernels/triton/*",
            "backends/paged_backends/*triton*.py",
            "tests/unit/*triton*.py",
            "tools/count_instructions.py",
        ),
    ),
    "cuda": Lane(  # emulated on the CPU, or over stand-ins for packages
        tests=(
            "*/test_cuda_*.py",
            "gpu/test_*.py",
            "unit/test_simt_shim.py",
            "conformance/test_attention_packages.py",
            "unit/test_flash_attn.py",
            "unit/test_flashinfer.py",
            "unit/test_gpu_tools.py",
        ),
        paths=(
            "backends/paged_backends/kernels/build.py",
            "backends/paged_backends/kernels/cuda/*",
            "backends/paged_backends/kernels/simt/*",
            "backends/paged_backends/attention/cuda_*.py",
            "backends/paged_backends/attention/flash*.py",
            "backends/paged_backends/attention/step.py",
            "backends/paged_backends/executors/cuda_accelerator.py",
            "tests/unit/*cuda*",
            "tests/unit/attention_packages/*",
            "tests/unit/simt_kernels/*",
            "tests/unit/emulated_kernels.py",
            "tools/count_instructions.py",
            "tools/figures.py",
            "tools/gpu_*.py",
            "tools/offline.py",
            "tools/stages.py",
        ),
    ),
    "server": Lane(  # engines in processes of their own, servers on sockets
        tests=(
            "server/test_*.py",
            "conformance/test_replicas.py",
            "conformance/test_servers.py",
        ),
        paths=(
            "plugins/paged_plugins/engine_process/*",
            "plugins/paged_plugins/replicas/*",
            "plugins/paged_plugins/server/*",
            "src/paged_core/client/*",
            "src/paged_core/async_llm.py",
            "src/paged_core/engine/driver.py",
            "src/paged_core/text/*",
            "tests/server/*",
        ),
    ),
    "kernels": Lane(  # attention, samples and products on the CPU, by each component
        tests=(
            "conformance/test_attention.py",
            "integration/test_cache_layout.py",
            "integration/test_cpu_attention.py",
            "unit/test_cpu_*.py",
            "unit/test_float8.py",
            "unit/test_hybrid_attention.py",
            "unit/test_int8_cache.py",
            "unit/test_quantization.py",
            "unit/test_quantized_*.py",
            "unit/test_sampled_rows.py",
            "unit/test_sampling.py",
            "unit/test_torch_attention.py",
            "unit/test_widened_codes.py",
            "unit/test_written_cache.py",
        ),
        paths=(
            "backends/paged_backends/attention/*",
            "backends/paged_backends/kernels/*",
            "backends/paged_backends/quantization/*",
            "backends/paged_backends/sampling/*",
            "src/paged_core/interfaces/attention.py",
            "src/paged_testing/attention.py",
            "tests/unit/*attention*.py",
            "tests/unit/cpu_kernels.py",
        ),
    ),
    "models": Lane(  # runners and executors of models
        tests=(
            "conformance/test_grammars.py",
            "conformance/test_runners.py",
            "integration/test_beam_search.py",
            "integration/test_device_*.py",
            "integration/test_local_executor.py",
            "integration/test_model_families.py",
            "integration/test_native_runner.py",
            "integration/test_structured_outputs.py",
            "unit/test_device_sampling.py",
            "unit/test_emulated_accelerator.py",
            "unit/test_sampling_selection.py",
        ),
        paths=(
            "backends/*",
            "src/paged_core/requests/beams.py",
            "src/paged_core/sequence.py",
            "src/paged_core/interfaces/executor.py",
            "src/paged_core/interfaces/grammar.py",
            "src/paged_core/interfaces/runner.py",
            "src/paged_core/structured_outputs.py",
            "src/paged_testing/grammar.py",
            "src/paged_testing/runner.py",
            "tests/integration/tiny_models.py",
        ),
    ),
    INSTRUCTION_SETS: Lane(  # all but the best of this machine and the portable one: by parameters
        tests=(),
        paths=(
            "backends/paged_backends/kernels/build.py",
            "backends/paged_backends/kernels/cpu/*",
            "tests/unit/cpu_kernels.py",
        ),
    ),
    "kit": Lane(  # the conformance kit on components that are wrong on purpose
        tests=("unit/test_testing_kit.py::test_catches", "unit/test_call_watch.py"),
        paths=("src/paged_testing/*", "tests/unit/faulty_*.py", "tests/unit/mutants.py"),
    ),
    INHERITED: Lane(  # cases about code of another component, by marks
        tests=(),
        paths=(
            "src/paged_testing/attention.py",
            "src/paged_testing/scheduler.py",
            "policies/paged_policies/schedulers/iteration_level.py",
            "policies/paged_policies/schedulers/static_batch.py",
        ),
    ),
    "documents": Lane(  # pages, examples and packages of plugins, executed
        tests=(
            "architecture/test_docs.py::test_what_a_page_shows_runs",
            "architecture/test_docs.py::test_every_page_is_built_without_a_warning",
            "conformance/test_documented_examples.py",
            "integration/test_paper.py",
            "integration/test_third_party.py",
            "integration/test_tutorial.py",
            "unit/test_new_plugin.py",
            "unit/test_recipes.py",
        ),
        paths=(
            "README.md",
            "docs/*.md",
            "examples/*",
            "mkdocs.yml",
            "plugins/paged_plugins/scaffold/*",
            "src/paged_core/former_names.py",
            "src/paged_core/interfaces/*",
            "src/paged_core/plugins/*",
            "tests/architecture/snippets.py",
        ),
    ),
    "inputs": Lane(  # arguments, templates and documents of any kind
        tests=(
            "integration/test_large_settings.py",
            "properties/test_arguments.py",
            "properties/test_hostile_documents.py",
            "unit/test_template_bounds.py",
        ),
        paths=(
            "backends/paged_backends/text/*",
            "src/paged_core/field_rules.py",
            "src/paged_core/llm.py",
            "src/paged_core/request*",
            "src/paged_core/sampling_params.py",
            "src/paged_core/settings/*",
            "src/paged_core/text/*",
            "tests/properties/hostile_documents.py",
        ),
    ),
    "processes": Lane(  # commands and engines in processes of their own
        tests=(
            "architecture/test_setup.py",
            "conformance/test_communicators.py",
            "integration/test_forks.py",
            "integration/test_generate_command.py",
            "integration/test_process_executor.py",
            "integration/test_ranks_on_ray.py",
            "integration/test_tensor_parallel.py",
            "properties/test_ranks.py",
            "conformance/test_executors.py::TestProcess",
            "conformance/test_executors.py::TestTensorParallel*",
            "unit/test_cli_process.py",
            "unit/test_communicators.py",
        ),
        paths=(
            "Makefile",
            "backends/paged_backends/communication/*",
            "backends/paged_backends/executors/channel.py",
            "backends/paged_backends/executors/process.py",
            "backends/paged_backends/executors/ray_workers.py",
            "backends/paged_backends/executors/remote.py",
            "backends/paged_backends/executors/shared_sampling.py",
            "backends/paged_backends/executors/tensor_parallel.py",
            "backends/paged_backends/executors/worker*.py",
            "src/paged_core/__main__.py",
            "src/paged_core/cli/*",
            "tests/integration/rank_faults.py",
            "src/paged_core/interfaces/communicator.py",
            "src/paged_testing/communicator.py",
            "src/paged_testing/ranks.py",
            "tests/integration/slow_executor.py",
            "tests/properties/reused_executor.py",
            "tools/find-python",
            "tools/torch-index",
        ),
    ),
    "onnx": Lane(
        tests=(
            "*/test_onnx*.py",
            "integration/test_damaged_onnx_files.py",
            "integration/test_hostile_onnx_files.py",
            "conformance/test_runners.py::TestOnnx*",
        ),
        paths=(
            "backends/paged_backends/runners/onnx/*",
            "backends/paged_backends/checkpoint/onnx_files.py",
            "tests/data/onnx/*",
            "tests/integration/onnx_graphs.py",
            "tools/make_onnx_files.py",
        ),
    ),
    "checkpoints": Lane(  # formats of files and of quantised weights, whole or shared by ranks
        tests=(
            "integration/test_checkpoints.py",
            "integration/test_damaged_checkpoints.py",
            "integration/test_gguf.py",
            "integration/test_quality_bounds.py",
            "integration/test_quantized_checkpoints.py",
            "integration/test_quantized_native.py",
            "integration/test_ranks_of_native.py",
            "unit/test_gguf_*.py",
        ),
        paths=(
            "backends/paged_backends/checkpoint/*",
            "backends/paged_backends/communication/gloo.py",
            "backends/paged_backends/kernels/cpu/source/decoder.cpp",
            "backends/paged_backends/quantization/*",
            "backends/paged_backends/runners/native/*",
            "tests/integration/*checkpoints.py",
            "tests/integration/rank_*.py",
            "tests/integration/damage.py",
            "tests/integration/gguf_files.py",
        ),
    ),
    "lab": Lane(  # simulations, studies and their workers
        tests=(
            "integration/test_simulated_decisions.py",
            "properties/test_simultaneous_intervals.py",
            "unit/test_calibration.py",
            "unit/test_cluster*.py",
            "unit/test_lab_*.py",
            "unit/test_search.py",
            "unit/test_simulate_command.py",
            "unit/test_study.py",
        ),
        paths=(
            "plugins/paged_plugins/lab/*",
            "plugins/paged_plugins/routing/*",
            "plugins/paged_plugins/workloads/*",
            "plugins/paged_plugins/files.py",
            "plugins/paged_plugins/written_files.py",
            "tests/unit/*cluster*.py",
            "tests/unit/lab_runs.py",
            "tests/unit/stud*.py",
        ),
    ),
    "bench": Lane(  # measurements, and peers in other environments
        tests=("unit/test_bench_*.py",),
        paths=(
            "plugins/paged_plugins/bench/*",
            "plugins/paged_plugins/workloads/*",
            "plugins/paged_plugins/machine.py",
            "tests/unit/bench_tasks.py",
            "tests/unit/peer_scripts.py",
            "tools/peers/*",
        ),
    ),
}
"""The lanes by name."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The files that a change touches."""

    paths: tuple[str, ...] | None
    """Relative to the repository; None: unknown."""
    since: str
    """Where they were found, in words."""

    @classmethod
    def of(cls, root: Path) -> Changes:
        """Return what is not committed, and the commits since ``origin/main``.

        Without that branch, and on it if nothing else has changed, the last commit.
        """
        top = _git(root, "rev-parse", "--show-toplevel")
        if top is None or Path(*top) != root.resolve():
            return cls(None, "this is no git checkout")
        status = _git(root, "status", "--porcelain", "--untracked-files=all", "--no-renames") or []
        uncommitted = {line[3:].strip('"') for line in status}
        base = _git(root, "merge-base", "HEAD", MAIN)
        if base is not None and (uncommitted or base != _git(root, "rev-parse", "HEAD")):
            since = MAIN
        else:
            base, since = _git(root, "rev-parse", "--verify", "--quiet", "HEAD~1"), "HEAD~1"
        if base is None:
            return cls(None, "the commit before this one is not here")
        committed = _git(root, "diff", "--name-only", "--no-renames", *base, "HEAD")
        if committed is None:
            return cls(None, f"git does not compare with {since}")
        return cls(tuple(sorted(uncommitted | {*committed})), f"since {since}")


def _git(root: Path, *command: str) -> list[str] | None:
    """Return the lines that a git command prints, or None if it fails."""
    try:
        done = subprocess.run(
            ["git", "-c", "core.quotePath=false", *command],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


class Selection:
    """Which tests of a run are kept.

    Args:
        wanted: ``changed``: the core lane and the lanes that the changes select; ``rest``: the
            others; ``all``: every test.
    """

    def __init__(self, wanted: Wanted, changes: Changes) -> None:
        self._wanted = wanted
        self._changes = changes
        self._reasons = dict(_selected(changes.paths))

    @property
    def header(self) -> str:
        """What runs and why, for the first lines of a run."""
        if self._wanted == "all":
            return "lanes: all"
        since = self._changes.since
        chosen = [
            f"{name} ({reason})" if reason else name for name, reason in self._reasons.items()
        ]
        others = [name for name in LANES if name not in self._reasons]
        if self._wanted == "rest":
            return f"lanes: {', '.join(others) or 'none'}: what `make test` leaves out ({since})"
        count = f"{len(chosen)} of {len(LANES)} others are selected"
        lines = [f"lanes: core; {count} by changed files ({since})"]
        if chosen:
            lines.append(f"  selected: {', '.join(chosen)}")
        if others:
            lines.append(f"  left to `make test-rest`: {', '.join(others)}")
        return "\n".join(lines)

    def ignores(self, file: Path) -> bool:
        """Return whether a test file need not be imported: nothing in it is kept."""
        return self._wanted == "changed" and not self._needs(file, [lanes_of_file(_name(file))])

    def keeps(self, item: pytest.Item) -> bool:
        """Return whether a test is kept."""
        if self._wanted == "all":
            return True
        return self._needs(item.path, lanes_of(item)) == (self._wanted == "changed")

    def _needs(self, file: Path, lanes: Iterable[Collection[str]]) -> bool:
        """Whether a change needs a test: it is in no lane, or in selected ones."""
        if f"tests/{_name(file)}" in (self._changes.paths or ()):
            return True
        return all(not names or any(name in self._reasons for name in names) for names in lanes)


def _selected(paths: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    """Each lane that changed files select, with the first of these files."""
    for name, lane in LANES.items():
        if paths is None:
            yield name, ""
        elif found := [path for path in paths if lane.selected_by(path)]:
            yield name, found[0]


def lanes_of(item: pytest.Item) -> list[Collection[str]]:
    """Return the lanes of a test's whole file, and its own; a change needs it that selects both.

    None: the core lane. A case of another instruction set in a file about CUDA, for instance, is
    needed by a change that selects both lanes.
    """
    file = _name(item.path)
    whole = lanes_of_file(file)
    own = {*lanes_of_file(file + item.nodeid.partition("[")[0][item.nodeid.index("::") :])} - whole
    own.update(mark.args[0] for mark in item.iter_markers("lane"))
    if any(one in _other_sets() for one in instruction_sets(item)):
        own.add(INSTRUCTION_SETS)
    return [whole, own]


@cache
def lanes_of_file(file: str) -> frozenset[str]:
    """Return the lanes that hold every test of a file, by its name below ``tests``; or a test."""
    return frozenset(name for name, lane in LANES.items() if lane.holds(file))


@cache
def _name(file: Path) -> str:
    folder = ROOT / "tests"
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.as_posix()


def instruction_sets(item: pytest.Item) -> Iterator[str]:
    """The instruction sets that a test names by a parameter, or by the component of its class."""
    spec = getattr(item, "callspec", None)
    values = [*spec.params.values()] if spec else []
    component = getattr(getattr(item, "cls", None), "component", None)
    if isinstance(component, dict):
        values += component.values()
    for value in values:
        name = getattr(value, "name", value)
        if isinstance(name, str) and name in _ALL_SETS:
            yield name


_ALL_SETS = frozenset(one.name for one in (*SETS, *EMULATED))


@cache
def _other_sets() -> frozenset[str]:
    """All but the best of this machine and the portable one."""
    with suppress(CannotCompile):
        return _ALL_SETS - {available(find_compiler())[0].name, "portable"}
    return _ALL_SETS - {"portable"}


def inherited(*names: str) -> Callable[[Class], Class]:
    """Put cases that a class inherits into a lane: they are about code that is tested elsewhere.

    They are copied, for the class and its subclasses: other classes keep theirs as they are.
    """
    return _marked(pytest.mark.lane(INHERITED), names)


def slow(*names: str) -> Callable[[Class], Class]:
    """Leave cases that a class inherits to `make test-long`: another class has them at once."""
    return _marked(pytest.mark.slow, names)


def _marked(mark: pytest.MarkDecorator, names: Iterable[str]) -> Callable[[Class], Class]:
    def marked(kind: Class) -> Class:
        for name in names:
            setattr(kind, name, mark(_copy(getattr(kind, name))))
        return kind

    return marked


def _copy(case: Callable[..., None]) -> Callable[..., None]:
    """A case with marks of its own."""

    @wraps(case)
    def copy(self: Any, **values: Any) -> None:
        case(self, **values)

    return copy
