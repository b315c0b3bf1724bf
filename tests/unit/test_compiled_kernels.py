"""Kernels compiled for GPUs that are not here: they fit, and spill nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cuda.kernel import WARPGROUP_DIMS, Variant
from paged_backends.kernels.cuda.toolkit import Nvcc
from paged_backends.kernels.triton.availability import INTERPRETER
from unit import instructions

pytestmark = pytest.mark.heavy

# ---------------------------------------------------------------------- CUDA: registers

_FUNCTION = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.S,
)
USUAL = Variant("bfloat16", 128, 16, "auto")
BLACKWELL = ("sm_100", "sm_120")
SHORT = (("sm_90", USUAL), ("sm_90", replace(USUAL, warpgroups=True)))
LONG = (
    *(
        ("sm_90", Variant(dtype, dim, 16, "auto", warpgroups=True))
        for dtype, dim in product(("bfloat16", "float16"), WARPGROUP_DIMS)
    ),
    *(
        (architecture, Variant(dtype, dim, group, cache))
        for architecture, (dtype, group), dim, cache in product(
            ("sm_80", "sm_90", *BLACKWELL),
            (("bfloat16", 16), ("float16", 16), ("float32", 1), ("float32", 8)),
            (64, 96, 128, 256),
            ("auto", "fp8_e4m3"),
        )
    ),
)


@pytest.mark.parametrize(
    ("architecture", "variant"),
    [*SHORT, *(pytest.param(*case, marks=pytest.mark.long) for case in LONG)],
    ids=str,
)
def test_no_register_is_spilled(architecture: str, variant: Variant) -> None:
    found = {name: made.spilled for name, made in built(architecture, variant).items()}
    kernels = {variant.write, variant.decode, variant.combine, "paged_copy_blocks"}
    if variant.tiles is not None:
        kernels.add(variant.tiles)
    assert found == dict.fromkeys(kernels, 0)


@dataclass(frozen=True)
class Made:
    """A kernel that was compiled."""

    spilled: int
    """Bytes stored."""
    registers: int
    code: instructions.Kernel


@cache
def built(architecture: str, variant: Variant) -> dict[str, Made]:
    """Compile a variant; the test is skipped where there is no compiler."""
    try:
        nvcc = Nvcc.find()
    except CannotCompile as error:
        pytest.skip(str(error))
    found = {}
    for build in variant.cubins(architecture):
        (source,) = build.paths()
        command: list[Any] = [nvcc.path, "-cubin", "-O3", "-Xptxas", "-v", *build.arguments()]
        with TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernels.cubin"
            command += [source, "-o", cubin]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
            code = instructions.disassemble(cubin)
        assert "serialized" not in done.stderr  # products of warpgroups, waited for one by one
        for name, *numbers in _FUNCTION.findall(done.stderr):
            stores, _, registers = map(int, numbers)
            found[name] = Made(stores, registers, code[name])
    return found


COPIES = {r"LDGSTS.*\]$": 0}
"""A copy ends with the predicate without which it would read what is not there."""
PRODUCTS = {**COPIES, r"HMMA(?!\.16816\.F32\.BF16 )": 0, "FENCE": 0}
USUAL_TILES = USUAL.tiles or ""
CODE: dict[str, tuple[Variant, str, int, dict[str, int]]] = {
    "decode": (
        *(USUAL, USUAL.decode, 3 * 128),
        {**PRODUCTS, "DEPBAR": 2, r"DEPBAR\.LE SB0, 0x3": 2, r"LDSM\.16\.M88": 8}
        | {r"LDSM\.16\.MT88": 8},
    ),
    "tiles": (
        *(USUAL, USUAL_TILES, 2 * 128),
        {**PRODUCTS, "DEPBAR": 2, r"DEPBAR\.LE SB0, 0x1": 2, r"LDSM\.16\.MT88": 32},
    ),
    "warpgroups": (
        *(
            replace(USUAL, warpgroups=True),
            USUAL_TILES.replace("tiles", "warpgroup_tiles"),
            2 * 256,
        ),
        {**COPIES, "DEPBAR": 2, r"DEPBAR\.LE SB0, 0x1": 2, r"FENCE\.VIEW\.ASYNC": 2}
        | {r"WARPGROUP\.ARRIVE": 2, r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0": 2}
        | {"HGMMA": 12, r"HGMMA\.64x128x16\.F32\.BF16 R\d+, R\d+, gdesc\[UR\d+\]\.tnspB": 4}
        | {r"HGMMA\.64x64x16\.F32\.BF16 R\d+, gdesc\[UR\d+\], ": 8},
    ),
}
"""Variant, kernel, threads of a multiprocessor at least, and how often its code has what no
emulation does: waits for copies, fences for products that read shared memory on their own,
transposed operands, predicates."""


@pytest.mark.parametrize("name", CODE)
def test_what_no_emulation_sees_is_in_the_code(name: str) -> None:
    variant, kernel, threads, expected = CODE[name]
    made = built("sm_90", variant)[kernel]
    text = [f"{one.opcode} {one.operands}".strip() for one in made.code.instructions]
    found = {part: sum(bool(re.match(part, line)) for line in text) for part in expected}
    assert found == expected
    assert -(-made.registers // 8) * 8 * threads <= 1 << 16


# ---------------------------------------------------------------------- Triton

SHARED_BYTES = {(8, 0): 163 << 10, (8, 6): 99 << 10, (8, 9): 99 << 10, (9, 0): 227 << 10}
"""Shared memory of a thread block, by compute capability (CUDA C++ Programming Guide)."""
SPILLED_BYTES = 32
"""Stack of a thread: a few registers that are read once."""
QWEN3 = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
FLOAT8 = {"kv_cache_dtype": "fp8_e4m3"}
SLOPES, CAP = {"alibi_slopes": (0.5,) * 16}, {"soft_cap": 5.0}
EVERYTHING = {"sliding_window": 1500, **CAP, **SLOPES}
Case = tuple[tuple[int, int], dict[str, Any] | None]


def compiled(*cases: Case) -> list[list[Any]]:
    """Return what each kernel takes, case by case, as ``unit.triton_compile`` says."""
    return _compiled(json.dumps(cases))


@cache
def _compiled(cases: str) -> list[list[Any]]:
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != INTERPRETER}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    program = [sys.executable, "-m", "unit.triton_compile", cases]
    ran = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[list[Any]] = json.loads(ran.stdout)
    return found


OF_DIMS = [
    [
        (capability, {**QWEN3, "head_dim": dim, **changes})
        for changes in (
            *({}, EVERYTHING, FLOAT8, {**FLOAT8, "dtype": "float16"}, {"dtype": "float32"}),
        )
    ]
    for capability, dim in product(SHARED_BYTES, (64, 80, 128, 256))
]
OTHERS = [{"block_size": 128}, {"block_size": 5}, {"num_heads": 64, "num_kv_heads": 2}]


@pytest.mark.parametrize(
    "cases",
    [
        [((9, 0), QWEN3)],
        *(
            pytest.param(cases, marks=pytest.mark.long)
            for cases in (
                *OF_DIMS,
                [((9, 0), None)],
                [*(((9, 0), {**QWEN3, **changes}) for changes in OTHERS), ((8, 0), None)],
            )
        ),
    ],
)
def test_kernels_in_triton_fit_and_spill_nothing(cases: list[Case]) -> None:
    """Kernels of attention; and with ``None`` in the place of a layer, those of the runner and of
    sampling, which are compiled."""
    for (capability, changes), found in zip(cases, compiled(*cases), strict=True):
        kernels = {kernel for kernel, *_ in found}
        if changes is None:
            assert len(kernels) == 9
            sampled = {"normalize_rows", "prepare_query_and_key", "gate_rows", "draw_tokens"}
            assert sampled <= kernels
            continue
        attention = {"attend_tiles", "attend_splits", "merge_splits"}
        assert kernels == {"write_tokens", "prepare_and_write", *attention}
        for kernel, shared, stack, _ in found:
            place = f"{kernel} for {capability}, {changes}"
            assert shared <= SHARED_BYTES[capability], place
            assert stack <= SPILLED_BYTES, f"{place} spills registers"


LOOPS: dict[str, dict[str, Any]] = {"plain": {}, "float8": FLOAT8, "slopes": SLOPES, "cap": CAP}


def counts(opcodes: list[str]) -> Counter[str]:
    """Return how often each opcode occurs, without its modifiers."""
    return Counter(opcode.partition(".")[0] for opcode in opcodes)


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.long] * (name != "plain")) for name in LOOPS]
)
def test_a_key_is_computed_alike_with_masks_and_without(case: str) -> None:
    """Else bits would depend on how a prompt is cut, which decides on the masks."""
    (made,) = compiled(((9, 0), {**QWEN3, **LOOPS[case]}))
    loops = {kernel: both for kernel, _, _, both in made}  # without masks, and with them
    plain, masked = map(counts, loops["attend_tiles"])
    assert plain["ISETP"] < masked["ISETP"]
    for opcode in ("FFMA", "FMUL", "FADD", "MUFU", "HGMMA", "FMNMX"):
        assert plain[opcode] == masked[opcode], opcode
