"""What a turn of the loops of attention in Triton takes, compiled for GPUs that are not here."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("triton")

from unit.test_triton_compile import EVERYTHING, FLOAT8, QWEN3, compiled

HOPPER = (9, 0)
SLOPES, CAP = {"alibi_slopes": EVERYTHING["alibi_slopes"]}, {"soft_cap": 5.0}
CASES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "plain": (HOPPER, {}),
    "float8": (HOPPER, FLOAT8),
    "slopes": (HOPPER, SLOPES),
    "cap": (HOPPER, CAP),
    "float8, RTX 4090": ((8, 9), FLOAT8),
    "float8 in float16": (HOPPER, {**FLOAT8, "dtype": "float16"}),
}
Loops = dict[str, dict[str, list[list[str]]]]


@pytest.fixture(scope="module")
def loops() -> Loops:
    """The opcodes of each case's kernels: of the loop without masks, and of that with masks."""
    found = compiled(*((gpu, {**QWEN3, **changes}) for gpu, changes in CASES.values()))
    return {
        case: {kernel: both for kernel, _, _, both in made if both}
        for case, made in zip(CASES, found, strict=True)
    }


def counts(opcodes: list[str]) -> Counter[str]:
    """Return how often each opcode occurs, without its modifiers."""
    return Counter(opcode.partition(".")[0] for opcode in opcodes)


@pytest.mark.parametrize("case", ["float8", "float8, RTX 4090", "float8 in float16"])
def test_float8_is_not_converted_by_a_slow_instruction(case: str, loops: Loops) -> None:
    """F2F, which has a quarter of the rate of others, converts float16 to bfloat16."""
    assert loops[case].keys() == {"attend_tiles", "attend_splits"}
    for both in loops[case].values():
        for loop in map(counts, both):
            assert loop["F2F"] == 0
            assert loop["HMMA"] + loop["HGMMA"] > 0


@pytest.mark.parametrize("kernel", ["attend_tiles", "attend_splits"])
def test_scales_are_on_their_way_before_keys_are_multiplied(kernel: str, loops: Loops) -> None:
    """A load after the products is waited for in full: nothing else is left to do."""
    for loop in loops["float8"][kernel]:
        scales = [at for at, opcode in enumerate(loop) if re.match(r"LDG\.E\.U(8|16)", opcode)]
        products = [at for at, opcode in enumerate(loop) if re.match("HG?MMA", opcode)]
        assert scales
        assert max(scales) < min(products)


SCORES = 128 * 64 // 256
"""Of a tile, in a thread."""


def test_a_turn_of_prefill(loops: Loops) -> None:
    plain, masked = map(counts, loops["plain"]["attend_tiles"])
    assert plain["HGMMA"] == masked["HGMMA"] == 12
    for loop in plain, masked:
        # a score is scaled where the greatest is taken away, and sums are multiplied rarely
        assert loop["FFMA"] == SCORES
        assert loop["FMUL"] < 8
        assert loop["MUFU"] == SCORES
    assert plain.total() < 400
    assert masked.total() < 500


@pytest.mark.parametrize("case", ["plain", "float8", "slopes", "cap"])
def test_a_key_is_computed_alike_with_masks_and_without(case: str, loops: Loops) -> None:
    """Else bits would depend on how a prompt is cut, which decides on the masks."""
    plain, masked = map(counts, loops[case]["attend_tiles"])
    assert plain["ISETP"] < masked["ISETP"]
    for opcode in ("FFMA", "FMUL", "FADD", "MUFU", "HGMMA", "FMNMX"):
        assert plain[opcode] == masked[opcode], opcode
