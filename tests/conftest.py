"""Marks, threads that leave others their time, repeatable examples, logs as a library has them."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import EMULATED, SETS, available, find_compiler
from paged_backends.kernels.nvidia import has_driver
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted
from paged_core.plugins import registry as plugin_registry
from paged_core.plugins.registry import Registry

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is first imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the cores to others
if not has_driver():  # read by Triton when it is first imported: kernels are executed on the CPU
    os.environ.setdefault(INTERPRETER, "1")
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine that is busy is no failure."""
settings.register_profile("exploring", _PATIENT)
settings.register_profile("repeatable", _PATIENT, derandomize=True)
settings.load_profile("repeatable")  # --hypothesis-profile=exploring takes examples by chance


def _once(discover: Any) -> Any:
    """Return a method that finds the same plugins once: half of the time of brief commands."""
    found: dict[tuple[Any, ...], Registry] = {}

    def discovered(kind: type[Registry], *, block: Collection[str] = ()) -> Registry:
        key = (plugin_registry.entry_points, is_interpreted(), *sys.path, None, *block)
        if key not in found:
            found[key] = discover(kind, block=block)
        return found[key]

    return classmethod(discovered)


Registry.discover = _once(vars(Registry)["discover"].__func__)  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def watched_accesses() -> Iterator[None]:
    """Let interpreted Triton kernels fail that use other memory than that of their tensors."""
    if not is_interpreted() or find_spec("triton") is None:
        yield
        return
    from unit.triton_accesses import watched

    with watched():
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file whose tests all have a mark that is not asked for.

    Half of the seconds of a collection are imports of packages that only such files need.
    """
    if collection_path.suffix != ".py":
        return None
    marks = re.search(r"^pytestmark = (\[[^]]*\]|.*)", collection_path.read_text(), re.M)
    unwanted = re.findall(r"\bnot (\w+)", config.option.markexpr)
    return True if marks and any(f"pytest.mark.{name}" in marks[0] for name in unwanted) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of an instruction set as ``long``, and cases of the kit that count as ``heavy``.

    Not ``long`` are those of the best set of this machine, the portable one, and the emulation of
    tile registers with it. Some cases are ``long`` in all but the first class of a component: what
    is kept of a request, say, is hardly a matter of its options. In slots of many components those
    that count are ``long`` for most of them.
    """
    usual = (_best_set(), "portable", EMULATED[-1].name)
    counted: dict[tuple[str, str, str], type] = {}
    for item in items:
        if any(one not in usual for one in instruction_sets(item)):
            item.add_marker(pytest.mark.long)
        name, kind = getattr(item, "originalname", None), getattr(item, "cls", None)
        if name in _COUNTING | _ONCE and kind is not None:
            part = kind.component
            part = part["name"] if isinstance(part, Mapping) else part
            is_first = kind is counted.setdefault((name, kind.slot, part), kind)
            if not is_first or (name in _COUNTING and part not in _COUNTED.get(kind.slot, [part])):
                item.add_marker(pytest.mark.long)
            elif name not in _BRIEF:
                item.add_marker(pytest.mark.heavy)


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


_COUNTING = frozenset(
    {
        "test_keeps_nothing_of_what_has_left",
        "test_its_memory_does_not_grow_with_the_number_of",
        "test_the_work_grows_in_proportion_to_the_text",
        "test_the_work_grows_in_proportion_to_the",
        "test_what_it_remembers_is_bounded",
        "test_what_has_left_is_forgotten",
        "test_instructions_grow_no_faster_than_a_logarithm",
        "test_requests_end_though_every_quantum_is_always_over",
        "test_decides_the_same_in_another_process",
        "test_goes_by_its_own_options_beside_another",
    }
)
"""Cases of the kit that trace hundreds of uses, or start a process: half of all its seconds."""
_COUNTED: Mapping[str, Collection[str]] = {
    "admission": ["token_bucket"],
    "evictor": ["arc", "s3_fifo"],
    "executor": ["local", "memory", "workers"],
    "length_predictor": ["history"],
    "observers": ["live_view", "metrics"],
    "preemption": ["auto"],
    "queue_order": ["fair", "mlfq"],
    "reasoning_parser": ["deepseek_r1"],
    "router": ["prefix_affinity", "session"],
    "runner": ["native"],
    "scheduler": ["past_future", "token_budget"],
    "tool_parser": ["gpt_oss", "hermes"],
    "victim": ["lowest_priority", "recompute_cost"],
}
"""Components that they are run for by CI, those that keep the most: of other slots, all."""
_BRIEF = frozenset({"test_holds_with_other_options"})
_ONCE = _BRIEF | {"test_asks_no_clock_and_rolls_no_dice"}
"""Others that are about a component more than about the options of a class."""
_ALL_SETS = frozenset(one.name for one in (*SETS, *EMULATED))


def _best_set() -> str | None:
    with suppress(CannotCompile):
        return available(find_compiler())[0].name
    return None


@pytest.fixture(autouse=True)
def _library_logs() -> Iterator[None]:
    """A command that ran in this process may have configured them."""
    structlog.reset_defaults()
    yield


@pytest.fixture(scope="session")
def compiled_kernels(request: pytest.FixtureRequest) -> None:
    """The CPU kernels that the chosen tests need, compiled before one in which calls are watched.

    All at once, in parallel; processes that run tests side by side wait for each other.
    """
    from unit.cpu_kernels import compile_all

    named = {one for item in request.session.items for one in instruction_sets(item)}
    compile_all({"auto", *named})


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama, which no test may change."""
    from integration import tiny_models

    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", autouse=True)
def _loaded_objects_are_left_alone() -> None:
    """Objects that live by now, above all modules, are not searched by every garbage collection.

    With PyTorch loaded, a whole collection takes a third of a second, and tests ask for hundreds.
    """
    gc.collect()
    gc.freeze()
