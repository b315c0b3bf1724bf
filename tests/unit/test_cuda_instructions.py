"""Instructions of compiled kernels are counted along the way that a warp mostly takes."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.kernel import Variant
from paged_core.interfaces.layer import LayerSpec
from unit.peer_scripts import TOOLS, script

counting = script("count_instructions", TOOLS)

ASSEMBLY = """\
	.section	.text.first,"ax",@progbits
first:
        /*0000*/                   S2R R1, SR_TID.X ;
.L_x_1:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   LDGSTS.E [R1], [R2] ;
        /*0040*/              @!P1 BRA `(.L_x_3) ;
        /*0050*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0060*/              @!P2 BRA `(.L_x_3) ;
        /*0070*/                   FMUL R4, R4, R4 ;
.L_x_3:
        /*0080*/               @P3 BRA `(.L_x_4) ;
        /*0090*/                   MUFU.EX2 R4, R4 ;
        /*00a0*/                   MUFU.RCP R4, R4 ;
        /*00b0*/                   BRA `(.L_x_5) ;
.L_x_4:
        /*00c0*/                   FADD R4, R4, R4 ;
.L_x_5:
        /*00d0*/                   BRA.DIV UR4, `(.L_x_6) ;
.L_x_7:
        /*00e0*/               @P0 BRA `(.L_x_2) ;
        /*00f0*/                   EXIT ;
.L_x_6:
        /*0100*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0110*/                   BRA `(.L_x_7) ;
	.section	.text.second,"ax",@progbits
second:
        /*0000*/                   EXIT ;
"""


def test_a_turn_of_the_loop_with_the_products() -> None:
    first, second = counting.parse(ASSEMBLY)
    loop = first.loop()
    assert [one.opcode for one in loop.instructions] == [
        *("LDGSTS.E", "BRA", "HMMA.16816.F32", "BRA"),  # not the short way, without products
        *("BRA", "FADD", "BRA.DIV", "BRA"),  # that of no soft cap
    ]
    assert len(loop) == 8
    assert loop.opcodes()["HMMA"] == 1
    assert len(first.loop("IADD3")) == 2
    with pytest.raises(LookupError, match="first has no loop with FFMA"):
        first.loop("FFMA")
    with pytest.raises(LookupError, match="second"):
        second.loop()


@functools.cache
def decode_counts(variant: Variant) -> dict[int, float]:
    try:
        return dict(counting.decode_counts(variant))
    except CannotCompile as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("group", "bounds"), [(2, (18, 38)), (4, (18, 38)), (8, (18, 38)), (16, (21, 41))]
)
def test_a_key_takes_few_instructions_to_decode(group: int, bounds: tuple[int, int]) -> None:
    """While a GPU reads a key and a value from memory, its warps can issue some hundred, and half
    as many in float8."""
    layer = LayerSpec(
        num_heads=group, num_kv_heads=1, head_dim=128, scale=0.1, block_size=16, dtype="bfloat16",
        device="cuda",
    )  # fmt: skip
    for bound, cache in zip(bounds, ("auto", "fp8_e4m3"), strict=True):
        found = decode_counts(Variant.of(replace(layer, kv_cache_dtype=cache)))
        assert found[8 if group <= 8 else 16] <= bound, cache
