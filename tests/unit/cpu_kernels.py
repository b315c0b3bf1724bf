"""Kernels for every instruction set, for tests; skipped where this machine lacks it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.compiler import EMULATED, NoSuchInstructions
from paged_backends.kernels.cpu.compiler import SETS as ALL
from paged_backends.kernels.cpu.tensor_kernels import Kernels

SETS = [one.name for one in (*ALL, *EMULATED)]
PLAIN_SETS = [one.name for one in ALL]
"""Emulated tiles multiply; all else is as without them."""


def load(name: str, num_threads: int = 2) -> Kernels:
    """Load the kernels, or skip the test and say why."""
    try:
        return Kernels.load(name, num_threads)
    except (CannotCompile, NoSuchInstructions) as error:
        pytest.skip(str(error))


def compile_all(names: Iterable[str]) -> None:
    """Compile the kernels for some instruction sets, as far as this machine has them, in parallel.

    For fixtures: in the tests of the conformance kit, a call may not take long.
    """

    def compile_one(name: str) -> None:
        with suppress(CannotCompile, NoSuchInstructions):
            Kernels.load(name, 1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, names))
