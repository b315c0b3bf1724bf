"""What every test needs: threads that leave others their time, and logs as a library has them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import structlog

from paged_backends.kernels.nvidia import has_driver
from paged_backends.kernels.triton.availability import INTERPRETER

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is first imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the cores to others
if not has_driver():  # read by Triton when it is first imported: kernels are executed on the CPU
    os.environ.setdefault(INTERPRETER, "1")


@pytest.fixture(autouse=True)
def _library_logs() -> Iterator[None]:
    """A command that ran in this process may have configured them."""
    structlog.reset_defaults()
    yield


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """The CPU kernels that ``auto`` chooses, compiled before a test in which calls are watched."""
    from unit.cpu_kernels import compile_all

    compile_all(["auto"])


@pytest.fixture(scope="module", autouse=True)
def _loaded_objects_are_left_alone() -> None:
    """What lives by now, above all what was imported, is not searched by every garbage collection.

    With PyTorch loaded, a whole collection takes a third of a second, and tests ask for hundreds.
    """
    gc.collect()
    gc.freeze()
