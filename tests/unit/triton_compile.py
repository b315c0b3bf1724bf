"""Compiles the launches of component ``triton`` for GPUs that are not here; run as a program.

Reads layers from the first argument (JSON: a list of ``[compute capability, changes of a layer]``)
and prints what each kernel takes: shared memory of a thread block, and stack of a thread, which is
0 if no register is spilled. It must run without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import json
import subprocess
import sys
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
from paged_testing.attention_scene import attention_batch
from unit.triton_kernels import LAYER, LaunchedFor

KERNELS = ("write_tokens", "attend_tiles", "attend_splits", "merge_splits")
TYPES = {
    **{torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"},
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
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
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
        stack = stack_bytes(made.asm["cubin"])
        self._found.append([self._kernel.__name__, made.metadata.shared, stack])


def stack_bytes(cubin: bytes) -> int:
    """Return the stack that a thread of a kernel takes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(usage.split("STACK:")[1].split()[0])


def launches(capability: tuple[int, int], changes: dict[str, Any]) -> list[Any]:
    """Compile all kernels for a layer, for prefill and for decoding in splits."""
    found: list[Any] = []
    kernels = {name: getattr(triton_layer, name) for name in KERNELS}
    layer = replace(LAYER, **changes)
    backend = LaunchedFor(triton_layer.Gpu(capability, 132))
    dtype = torch.uint8 if layer.kv_cache_dtype != "auto" else getattr(torch, layer.dtype)
    bound = backend.bind(layer, torch.zeros(backend.cache_shape(layer, 1), dtype=dtype))
    tables = np.zeros((2, 2048), np.int32)
    batch = attention_batch(tables, [(2000, 1), (0, 3)], layer.block_size)
    heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    rows = [torch.zeros(4, n, layer.head_dim, dtype=getattr(torch, layer.dtype)) for n in heads]
    try:
        for name, kernel in kernels.items():
            setattr(triton_layer, name, Compiled(kernel, capability, found))
        bound.forward(*rows, backend.plan(batch))
    finally:
        for name, kernel in kernels.items():
            setattr(triton_layer, name, kernel)
    return found


if __name__ == "__main__":
    compiled = [launches((a, b), changes) for (a, b), changes in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps(compiled))
