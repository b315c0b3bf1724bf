"""Prefill attention `cuda` issues products for some keys, and little that computes addresses."""

from __future__ import annotations

from typing import Any

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.kernel import MATRIX_ROWS, Variant
from paged_backends.kernels.cuda.toolkit import find_compilers
from unit.peer_scripts import TOOLS, script

counting = script("count_instructions", TOOLS)

MAIN = (128, "auto")
CASES = {
    MAIN: (256, 16, 890),
    (64, "auto"): (128, 8, 690),
    (96, "auto"): (192, 12, 800),
    (256, "auto"): (128, 16, 500),
    (128, "fp8_e4m3"): (256, 32, 1060),
}
"""Products, copies and the most instructions in all for 64 keys (32 of head dimension 256), by head
dimension and cache."""


def loop_of(dim: int, cache: str, holding: str, *, warpgroups: bool = False) -> Any:
    """Return a turn of the loop of the kernel that computes tiles."""
    try:
        counting.disassembler()
    except CannotCompile as error:
        pytest.skip(str(error))
    compilers = find_compilers()
    if isinstance(compilers, CannotCompile):
        pytest.skip(str(compilers))
    variant = Variant("bfloat16", dim, MATRIX_ROWS, cache, warpgroups)
    return counting.compiled(variant)[variant.tiles].loop(holding)


@pytest.mark.parametrize(
    ("dim", "cache"),
    [case if case == MAIN else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_instructions_of_a_turn(dim: int, cache: str) -> None:
    products, copies, most = CASES[dim, cache]
    loop = loop_of(dim, cache, counting.HOLDING)
    opcodes = loop.opcodes()
    assert opcodes["HMMA"] == products
    assert opcodes["LDGSTS"] == copies  # all are unrolled, and counted
    assert len(loop) <= most


def test_instructions_of_a_turn_with_warpgroups() -> None:
    """For 16 rows of a warp; above, they are for 32."""
    loop = loop_of(*MAIN, "HGMMA|LDGSTS|MUFU.EX2", warpgroups=True)
    opcodes = loop.opcodes()
    assert opcodes["HGMMA"] == 8 + 4  # 16 dimensions, or keys, in each
    assert opcodes["LDGSTS"] == 8
    assert len(loop) <= 420
