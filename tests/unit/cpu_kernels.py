"""Kernels for every instruction set, for tests; skipped where this machine lacks it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import EMULATED, NoSuchInstructions
from paged_backends.kernels.cpu.compiler import SETS as ALL
from paged_backends.kernels.cpu.tensor_kernels import Kernels

SETS = [one.name for one in (*ALL, *EMULATED)]


def load(name: str, num_threads: int = 2) -> Kernels:
    """Load the kernels, or skip the test and say why."""
    try:
        return Kernels.load(name, num_threads)
    except (CannotCompile, NoSuchInstructions) as error:
        pytest.skip(str(error))


def loadable(num_threads: int = 2) -> dict[str, Kernels]:
    """Return the kernels of every instruction set that this machine has."""
    found = {}
    for name in SETS:
        with suppress(CannotCompile, NoSuchInstructions):
            found[name] = Kernels.load(name, num_threads)
    return found
