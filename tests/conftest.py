"""Lanes, threads that leave others their time, repeatable examples, logs as a library has them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from lanes import ROOT, Changes, Selection, instruction_sets
from paged_backends.kernels.nvidia import has_driver
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is first imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the cores to others
if not has_driver():  # read by Triton when it is first imported: kernels are executed on the CPU
    os.environ.setdefault(INTERPRETER, "1")
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine that is busy is no failure."""
settings.register_profile("exploring", _PATIENT)
settings.register_profile("repeatable", _PATIENT, derandomize=True)
settings.load_profile("repeatable")  # --hypothesis-profile=exploring takes examples by chance

_SELECTION = pytest.StashKey[Selection]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that choose lanes; see :mod:`lanes`."""
    group = parser.getgroup("lanes", "parts of the tests; see tests/lanes.py")
    group.addoption(
        "--lanes",
        choices=("all", "changed", "rest"),
        default="all",
        help="which tests run: those that the changed files need, all others, or all (default)",
    )
    group.addoption(
        "--changed-path",
        action="append",
        metavar="PATH",
        help="a file that counts as changed, relative to the repository, instead of asking git",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the changed files, once: processes of pytest-xdist get them as an option."""
    wanted, paths = config.option.lanes, config.option.changed_path
    changes = Changes(paths and tuple(paths), "as --changed-path says")
    if paths is None and wanted != "all":
        changes = Changes.of(ROOT)
        config.option.changed_path = changes.paths and [*changes.paths]
    config.stash[_SELECTION] = Selection(wanted, changes)


@pytest.fixture(scope="module")
def watched_accesses() -> Iterator[None]:
    """Let interpreted Triton kernels fail that use other memory than that of their tensors."""
    if not is_interpreted() or find_spec("triton") is None:
        yield
        return
    from unit.triton_accesses import watched

    with watched():
        yield


def pytest_report_header(config: pytest.Config) -> str:
    """Say which lanes run."""
    return config.stash[_SELECTION].header


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of tests of which none is kept."""
    is_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_tests and config.stash[_SELECTION].ignores(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the selected lanes."""
    selection = config.stash[_SELECTION]
    kept = {item: selection.keeps(item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not kept[item]])
    items[:] = [item for item in items if kept[item]]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Succeed if the changed files had selected all lanes, and nothing is left to run."""
    if session.config.option.lanes == "rest" and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


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
    """What lives by now, above all what was imported, is not searched by every garbage collection.

    With PyTorch loaded, a whole collection takes a third of a second, and tests ask for hundreds.
    """
    gc.collect()
    gc.freeze()
