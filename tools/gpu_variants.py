"""Compiles the CUDA kernels of tests and benchmarks for this machine's GPU, many at once.

python3 tools/gpu_variants.py PROCESSES
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context

import torch

from paged_backends.kernels.build import Build, CannotCompile, library
from paged_backends.kernels.cuda.kernel import DIMS, Variant
from paged_backends.kernels.cuda.targets import architecture
from paged_backends.kernels.cuda.toolkit import find_compilers

GROUPS = {"bfloat16": (16,), "float16": (16,), "float32": (1, 2, 4)}


def variants(capability: str) -> Iterator[Variant]:
    """Yield those that ``tests/gpu`` and ``bench`` load on a GPU."""
    for (dtype, groups), dim, cache in product(GROUPS.items(), DIMS, ("auto", "fp8_e4m3")):
        yield from (Variant(dtype, dim, group, cache) for group in groups)
        tiles = Variant(dtype, dim, groups[0], cache, warpgroups=True)
        if capability == "sm_90" and tiles.warpgroup_problem() is None:
            yield tiles


def compiled(build: Build) -> str:
    """Compile the code of a build, if it is not in the cache."""
    compilers = find_compilers()
    if isinstance(compilers, CannotCompile):
        raise compilers
    return str(library(build, compilers[0]))


if __name__ == "__main__":
    gpu = architecture(torch.cuda.current_device())
    builds = {build.name: build for one in variants(gpu) for build in one.cubins(gpu)}
    with ProcessPoolExecutor(int(sys.argv[1]), get_context("spawn")) as pool:
        for path in pool.map(compiled, builds.values()):
            print(path, flush=True)  # noqa: T201 - a program
