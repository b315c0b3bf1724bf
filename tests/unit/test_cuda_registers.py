"""nvcc compiles the CUDA kernels for GPUs, and their registers suffice."""

from __future__ import annotations

import re
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.kernel import WARPGROUP_DIMS, Variant
from paged_backends.kernels.cuda.toolkit import Nvcc

_FUNCTION = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads", re.S
)

SHORT = (
    ("sm_90", Variant("bfloat16", 128, 16, "auto")),
    ("sm_90", Variant("bfloat16", 128, 16, "auto", warpgroups=True)),
)
WARPGROUPS = tuple(
    ("sm_90", Variant(dtype, dim, 16, "auto", warpgroups=True))
    for dtype, dim in product(("bfloat16", "float16"), WARPGROUP_DIMS)
)
LONG = tuple(
    (architecture, Variant(dtype, dim, group, cache))
    for architecture, (dtype, group), dim, cache in product(
        ("sm_80", "sm_90"),
        (("bfloat16", 16), ("float16", 16), ("float32", 1), ("float32", 8)),
        (64, 96, 128, 256),
        ("auto", "fp8_e4m3"),
    )
)


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [*SHORT, *(pytest.param(*case, marks=pytest.mark.slow) for case in (*WARPGROUPS, *LONG))],
    ids=str,
)
def test_no_register_is_spilled(architecture: str, variant: Variant, tmp_path: Path) -> None:
    try:
        nvcc = Nvcc.find()
    except CannotCompile as error:
        pytest.skip(str(error))
    found = {}
    for build in variant.cubins(architecture):
        (source,) = build.paths()
        command: list[Any] = [nvcc.path, "-cubin", "-O3", "-Xptxas", "-v", *build.arguments()]
        done = subprocess.run(
            [*command, source, "-o", tmp_path / "kernels.cubin"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:4000]
        assert "serialized" not in done.stderr  # products of warpgroups, waited for one by one
        found |= {name: (stores, loads) for name, stores, loads in _FUNCTION.findall(done.stderr)}
    kernels = {variant.write, variant.decode, variant.combine, "paged_copy_blocks"}
    if variant.tiles is not None:
        kernels.add(variant.tiles)
    assert found == dict.fromkeys(kernels, ("0", "0"))
