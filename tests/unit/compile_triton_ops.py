"""Compiles the kernels of the runner and of sampling for GPUs that are not here.

    python compile_triton_ops.py 80 90

It needs neither GPU nor driver, and must not be run with ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

from paged_backends.kernels.triton import layer_ops, sampling

_POINTERS = {
    "positions": "*i64",
    "frequencies": "*fp32",
    "cos": "*fp32",
    "sin": "*fp32",
    "logits": "*fp32",
    "best": "*i64",
    "sums": "*i64",
    "levels": "*fp32",
    "mark_sums": "*i64",
    "mark_counts": "*i32",
    "pool": "*fp32",
    "pool_ids": "*i32",
    "sizes": "*i32",
    "tokens": "*i64",
    "peaks": "*fp32",
    "temperatures": "*fp32",
    "min_ps": "*fp32",
    "top_ks": "*i32",
    "top_ps": "*fp32",
    "uniforms": "*fp64",
}
_FLOATS = {"eps", "offset", "scale"}
_OF_THE_MODEL = {
    *("rows", "weight", "bias", "residual", "out", "gate_up"),
    *("query", "key", "query_norm", "key_norm"),
}
_NORM = {"CENTERED": False, "HAS_WEIGHT": True, "HAS_BIAS": False, "WIDTH": 1024}
_DRAW = {"CHUNK": 4096, "CHUNKS": 64, "GREEDY_BELOW": 1e-5}
CASES: list[tuple[Any, dict[str, Any]]] = [
    (layer_ops.normalize_rows, _NORM | {"HAS_RESIDUAL": False}),
    (layer_ops.normalize_rows, _NORM | {"HAS_RESIDUAL": True}),
    (layer_ops.normalize_rows, _NORM | {"HAS_RESIDUAL": False, "CENTERED": True, "HAS_BIAS": True}),
    (
        layer_ops.prepare_query_and_key,
        {
            **{"HAS_QUERY_NORM": True, "HAS_KEY_NORM": True, "HAS_ROTARY": True},
            **{"ROWS": 16, "HALF": 64},
        },
    ),
    (layer_ops.compute_angles, {"TOKENS": 8, "HALF": 64}),
    *((layer_ops.gate_rows, {"ACTIVATION": name, "BLOCK": 1024}) for name in ("silu", "gelu")),
    (sampling.best_of_chunks, {"CHUNK": 4096}),
    (sampling.take_best, {"CHUNKS": 64}),
    (sampling.weigh_chunks, _DRAW | {"MARKS": 8}),
    (sampling.collect_chunks, _DRAW | {"MARKS": 8, "POOL": 8192}),
    (sampling.draw_tokens, _DRAW | {"POOL": 8192}),
]


def compile_for(
    kernel: Any, constants: dict[str, Any], capability: int, dtype: str, num_warps: int = 4
) -> CompiledKernel:
    """Compile one variant of a kernel, with pointers and strides that are multiples of 16."""

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in _OF_THE_MODEL:
            return f"*{dtype}"
        return _POINTERS.get(name, "fp32" if name in _FLOATS else "i32")

    signature = {name: type_of(name) for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or "stride" in name
    }
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(
        ASTSource(kernel, signature, values, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": num_warps},
    )


def main() -> None:
    """Compile every kernel for the capabilities given, and print what each takes."""
    for capability in map(int, sys.argv[1:]):
        for kernel, constants in CASES:
            num_warps = 8 if kernel is sampling.draw_tokens else 4
            made = compile_for(kernel, constants, capability, "bf16", num_warps)
            size = len(made.asm["cubin"])
            sys.stdout.write(f"sm_{capability} {kernel.__name__}: {size} B\n")


if __name__ == "__main__":
    main()
