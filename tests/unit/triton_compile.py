"""Compiles launches of Triton kernels for GPUs that are not here; run as a program.

Reads cases from the first argument (JSON: a list of ``[compute capability, changes of a layer]`` of
component ``triton``, or ``null`` in their place for the kernels of the runner and of sampling) and
prints of each kernel its name; what it takes: shared memory of a thread block, and stack of a
thread, which is 0 if no register is spilled; and the opcodes of a turn of its loops: of the one
without masks, if there are two, and of the one with most comparisons. It must run without
``TRITON_INTERPRET``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paged_backends.attention import triton_layer
from paged_backends.kernels.triton import layer_ops, sampling
from paged_core.interfaces.attention import HeadPreparation
from paged_testing.attention_scene import attention_batch
from unit import instructions
from unit.triton_kernels import LAYER, AbsentGpu, LaunchedFor

KERNELS = {
    triton_layer: (
        *("write_tokens", "prepare_and_write"),
        *("attend_tiles", "attend_splits", "merge_splits"),
    ),
    layer_ops: ("normalize_rows", "prepare_query_and_key", "compute_angles", "gate_rows"),
    sampling: ("best_of_chunks", "take_best", "weigh_chunks", "collect_chunks", "draw_tokens"),
}
"""Kernels that the functions of a module launch."""
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
TYPES = {
    **{torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"},
    torch.float64: "fp64",
    **{torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64"},
}


class Compiled:
    """Stands for a kernel: what would be launched is compiled, as a launch would do it."""

    def __init__(self, kernel: Any, capability: tuple[int, int], found: list[Any]) -> None:
        self._kernel, self._found = kernel, found
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self._compile

    def _compile(self, *args: Any, **named: Any) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        signature, constants, attributes = {}, {}, {}
        given = dict(zip(self._kernel.arg_names, args, strict=False)) | named
        for index, parameter in enumerate(self._kernel.params):
            value = given[parameter.name]
            is_aligned = False
            if parameter.is_constexpr:
                kind = "constexpr"
                constants[(index,)] = value
            elif isinstance(value, Tensor):
                kind = f"*{TYPES[value.dtype]}"
                is_aligned = not parameter.do_not_specialize_on_alignment
            elif isinstance(value, int):
                kind = "i32"
                is_aligned = value % 16 == 0 and not parameter.do_not_specialize
            else:
                kind = "fp32"
            if is_aligned:
                attributes[(index,)] = [["tt.divisibility", 16]]
            signature[parameter.name] = kind
        source = ASTSource(self._kernel, signature, constants, attributes)
        made = triton.compile(source, target=self._target, options=options)
        name = self._kernel.__name__
        with TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernel.cubin"
            cubin.write_bytes(made.asm["cubin"])
            found = [name, made.metadata.shared, stack_bytes(cubin), loops(cubin, name)]
        self._found.append(found)


def stack_bytes(cubin: Path) -> int:
    """Return the stack that a thread of a kernel takes."""
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(usage.split("STACK:")[1].split()[0])


def loops(cubin: Path, name: str) -> list[list[str]]:
    """Return the opcodes of the loop of attention, and of its twin with masks."""
    if name not in ("attend_tiles", "attend_splits"):
        return []
    kernel = instructions.disassemble(cubin)[name]
    products = "HG?MMA|FFMA"
    both = (kernel.loop(holding) for holding in (products, f"{products}|FSEL|ISETP"))
    return [[one.opcode for one in loop] for loop in both]


@contextmanager
def compiling(capability: tuple[int, int]) -> Iterator[list[Any]]:
    """Have what would be launched compiled; yields what each kernel takes."""
    found: list[Any] = []
    kernels = [(at, name, getattr(at, name)) for at, names in KERNELS.items() for name in names]
    for module, name, kernel in kernels:
        setattr(module, name, Compiled(kernel, capability, found))
    try:
        yield found
    finally:
        for module, name, kernel in kernels:
            setattr(module, name, kernel)


def attend(capability: tuple[int, int], changes: dict[str, Any]) -> None:
    """Launch all kernels for a layer, for prefill and for decoding in splits."""
    layer = replace(LAYER, **changes)
    backend = LaunchedFor(AbsentGpu(capability, 132))
    dtype = torch.uint8 if layer.kv_cache_dtype != "auto" else getattr(torch, layer.dtype)
    bound = backend.bind(layer, torch.zeros(backend.cache_shape(layer, 1), dtype=dtype))
    tables = np.zeros((2, 2048), np.int32)
    batch = attention_batch(tables, [(2000, 1), (0, 3)], layer.block_size)
    heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    rows = [torch.zeros(4, n, layer.head_dim, dtype=getattr(torch, layer.dtype)) for n in heads]
    plan = backend.plan(batch)
    bound.forward(*rows, plan)
    norm, angles = rows[0][0, 0], torch.zeros(4, layer.head_dim // 2)
    bound._prepare_and_write(
        *rows,
        plan,
        HeadPreparation(
            query_norm=norm, key_norm=norm, eps=1e-6, offset=0.0, cos=angles, sin=angles
        ),
    )


def run_and_sample() -> None:
    """Launch what a runner and a sampler launch."""
    rows = torch.zeros(16, 1024, dtype=torch.bfloat16)
    layer_ops.rms_norm(rows, rows[0], 1e-6)
    layer_ops.rms_norm(rows, rows[0], 1e-6, 1.0, rows)
    layer_ops.layer_norm(rows, rows[0], rows[0], 1e-6)
    angles = layer_ops.rotary_angles(torch.zeros(64), torch.arange(16))
    heads, norm = rows.view(16, 8, 128), rows[0, :128]
    layer_ops.prepare_heads(heads, heads, angles, query_norm_D=norm, key_norm_D=norm)
    layer_ops.gated(rows, "silu")
    layer_ops.gated(rows, "gelu")
    number = torch.ones(1)
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.zeros(1, 250_000, dtype=dtype)
        sampling.best_tokens(logits)
        sampling.draw(
            logits,
            temperature_R=number,
            min_p_R=number,
            top_k_R=number.int(),
            top_p_R=number,
            uniform_R=number.double(),
            greedy_below=1e-5,
        )


def compiled(capability: tuple[int, int], changes: dict[str, Any] | None) -> list[Any]:
    with compiling(capability) as found:
        if changes is None:
            run_and_sample()
        else:
            attend(capability, changes)
    return found


if __name__ == "__main__":
    cases = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps([compiled((a, b), changes) for (a, b), changes in cases]))
