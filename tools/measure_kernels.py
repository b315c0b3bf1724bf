"""Measure the CPU kernels against PyTorch: products and attention, in the shapes of two models.

    python tools/measure_kernels.py [products|attention|cache|deterministic]...
        [--threads N] [--set NAME] [--wall]

``cache`` compares attention over a cache in int8 with one in bfloat16, ``deterministic`` attention
whose bits depend on nothing else with that of the defaults. ``paged-core bench decode`` measures
steps.

The alternatives run in turns; medians of nine rounds. Without --wall, time is processor time of the
process, which other processes disturb less: use it with one thread.
"""

# ruff: noqa: B023 - the closures run before the loop variable changes
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.attention.cache import layout_of
from paged_backends.attention.cpu_attention import CpuAttention
from paged_backends.attention.settings import CpuSettings, TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, LayerAttention
from paged_core.interfaces.layer import KVCacheDtype, LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import attention_batch

BF16 = torch.bfloat16
ROUNDS = 9
SHAPES = {"135M": (9, 3, 64), "0.6B": (16, 8, 128)}
"""Heads, key/value heads, head dimension."""
BATCHES = {
    "decode 16 x 256": [(255, 1)] * 16,
    "decode 1 x 300": [(299, 1)],
    "decode 4 x 2048": [(2047, 1)] * 4,
    "prefill 512": [(0, 512)],
    "prefill 4 x 128": [(0, 128)] * 4,
}
"""Cached and new tokens of each sequence."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def compare(
    clock: Callable[[], float], runs: Mapping[str, Callable[[], object]], calls: int
) -> dict[str, float]:
    """Run the alternatives in turns; return the median of each, in seconds per call."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            started = clock()
            run()
            if turn:
                seconds[name].append((clock() - started) / calls)
    return {name: median(found) for name, found in seconds.items()}


def bandwidth(clock: Callable[[], float]) -> str:
    numbers = torch.ones(64 << 20)
    found = compare(clock, {"read": numbers.sum}, 1)["read"]
    return f"memory is read at {numbers.nbytes / found / 1e9:.0f} GB/s"


def products(kernels: Kernels, clock: Callable[[], float]) -> None:
    say("| weight | rows | bf16, us | int8 | int4 | oneDNN packed | F.linear | bf16, GFLOP/s |")
    say("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for columns, width in ((576, 1536), (1536, 576), (1024, 6144), (3072, 1024)):
        count = max(2, (128 << 20) // (columns * width * 2))  # larger than the processor's caches
        weights = [torch.randn(width, columns).to(BF16) for _ in range(count)]
        packed = [kernels.pack(weight) for weight in weights]
        codes = {
            bits: [kernels.pack_quantized(quantized(weight, bits)) for weight in weights]
            for bits in (8, 4)
        }
        for rows in (1, 4, 16, 64, 96):
            x, out = torch.randn(rows, columns).to(BF16), torch.empty(rows, width, dtype=BF16)
            theirs = [torch.ops.mkldnn._reorder_linear_weight(weight, rows) for weight in weights]
            point = torch.ops.mkldnn._linear_pointwise
            found = compare(
                clock,
                {
                    "ours": lambda x=x, out=out: [kernels.linear(x, w, out=out) for w in packed],
                    **{
                        f"int{bits}": lambda x=x, out=out, ws=own: [
                            kernels.linear(x, w, out=out) for w in ws
                        ]
                        for bits, own in codes.items()
                    },
                    "packed": lambda x=x, ws=theirs: [
                        point(x, w, None, "none", [], "") for w in ws
                    ],
                    "linear": lambda x=x: [functional.linear(x, w) for w in weights],
                },
                count,
            )
            rate = 2 * rows * columns * width / found["ours"] / 1e9
            times = " | ".join(f"{second * 1e6:.0f}" for second in found.values())
            say(f"| {columns} x {width} | {rows} | {times} | {rate:.0f} |")


def batch_of(chunks: list[tuple[int, int]], block_size: int) -> tuple[AttentionBatch, int]:
    """A batch over consecutive blocks, and how many there are."""
    width = max(-(-sum(both) // block_size) for both in chunks)
    tables = np.arange(width * len(chunks)).reshape(len(chunks), width)
    return attention_batch(tables, chunks, block_size), tables.size


def layer_of(shape: str) -> LayerSpec:
    heads, kv_heads, dim = SHAPES[shape]
    return LayerSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        scale=dim**-0.5,
        dtype="bfloat16",
        device="cpu",
        block_size=16,
    )


def attention(chosen: str, clock: Callable[[], float]) -> None:
    count = 12  # layers: together larger than the processor's caches
    backends: dict[str, AttentionBackend] = {
        "cpu": cpu_attention(chosen),
        "torch": TorchAttention(TorchSettings(), AttentionContext(settings=EngineSettings())),
    }
    say("| shape, batch | `cpu`, us | `torch`, us | SDPA without pages, us |")
    say("| --- | ---: | ---: | ---: |")
    for shape in SHAPES:
        layer = layer_of(shape)
        for name, chunks in BATCHES.items():
            batch, blocks = batch_of(chunks, layer.block_size)
            rows = random_rows(layer, int(batch.query_start[-1]))
            runs: dict[str, Callable[[], object]] = {}
            for kind, backend in backends.items():
                backend.check(layer)
                shapes = backend.cache_shape(layer, blocks)
                layers = [backend.bind(layer, torch.randn(shapes).to(BF16)) for _ in range(count)]
                runs[kind] = step_of(backend, batch, layers, rows)
            runs["sdpa"] = dense_attention(layer, chunks, count)
            found = compare(clock, runs, count)
            times = " | ".join(f"{second * 1e6:.0f}" for second in found.values())
            say(f"| {shape}, {name} | {times} |")


CACHE_BATCHES = {
    "decode 16 x 4096": [(4095, 1)] * 16,
    "decode 16 x 256": [(255, 1)] * 16,
    "prefill 512": [(0, 512)],
}


def cache(chosen: str, clock: Callable[[], float]) -> None:
    backend = cpu_attention(chosen)
    say("| shape, batch | bfloat16, us | int8, us | ratio |")
    two(clock, CACHE_BATCHES, [(backend, "auto"), (backend, "int8")])


def deterministic(chosen: str, clock: Callable[[], float]) -> None:
    backends = [cpu_attention(chosen, deterministic=wanted) for wanted in (True, False)]
    say("| shape, batch | deterministic, us | default, us | ratio |")
    two(clock, BATCHES, [(backend, "auto") for backend in backends])


def cpu_attention(chosen: str, *, deterministic: bool = False) -> CpuAttention:
    options = CpuSettings.model_validate({"instruction_set": chosen})
    settings = EngineSettings(deterministic=deterministic)
    return CpuAttention(options, AttentionContext(settings=settings))


def two(
    clock: Callable[[], float],
    batches: Mapping[str, list[tuple[int, int]]],
    sides: Sequence[tuple[CpuAttention, KVCacheDtype]],
) -> None:
    """Print the times of two backends, over layers larger than the processor's caches, and the
    ratio of the first to the second."""
    say("| --- | ---: | ---: | ---: |")
    for shape in SHAPES:
        layer = layer_of(shape)
        for name, chunks in batches.items():
            batch, blocks = batch_of(chunks, layer.block_size)
            count = max(2, (64 << 20) // (blocks * layer.block_size * layer.bytes_per_token))
            rows = random_rows(layer, int(batch.query_start[-1]))
            runs: dict[str, Callable[[], object]] = {}
            for number, (backend, kind) in enumerate(sides):
                spec = replace(layer, kv_cache_dtype=kind)
                layers = [filled_layer(backend, spec, blocks) for _ in range(count)]
                runs[str(number)] = step_of(backend, batch, layers, rows)
            first, second = compare(clock, runs, count).values()
            times = f"{first * 1e6:.0f} | {second * 1e6:.0f}"
            say(f"| {shape}, {name} | {times} | {first / second:.2f} |")


def step_of(
    backend: AttentionBackend,
    batch: AttentionBatch,
    layers: Sequence[LayerAttention],
    rows: Sequence[Tensor],
) -> Callable[[], None]:
    """Return a function that plans a step and runs its layers."""

    def run() -> None:
        plan = backend.plan(batch)
        for layer in layers:
            layer.forward(*rows, plan)

    return run


def random_rows(layer: LayerSpec, tokens: int) -> list[Tensor]:
    """Query, key and value."""
    heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
    return [torch.randn(tokens, number, layer.head_dim).to(BF16) for number in heads]


def filled_layer(backend: CpuAttention, layer: LayerSpec, blocks: int) -> LayerAttention:
    """A layer whose whole cache is written, as the tokens of one sequence."""
    assert backend.check(layer) is None
    held = layout_of(backend).allocate_cache(layer, blocks, layer.device)
    size = blocks * layer.block_size
    whole = attention_batch(np.arange(blocks)[None], [(0, size)], layer.block_size)
    narrow = backend.bind(replace(layer, sliding_window=1), held)
    narrow.forward(*random_rows(layer, size), backend.plan(whole))
    return backend.bind(layer, held)


def dense_attention(
    layer: LayerSpec, chunks: list[tuple[int, int]], num_layers: int
) -> Callable[[], object]:
    """PyTorch's attention over contiguous keys and values; all chunks are like the first."""
    (cached, new), count, dim = chunks[0], len(chunks), layer.head_dim
    query = torch.randn(count, layer.num_heads, new, dim).to(BF16)
    stored = [
        torch.randn(2, count, layer.num_kv_heads, cached + new, dim).to(BF16)
        for _ in range(num_layers)
    ]
    return lambda: [
        functional.scaled_dot_product_attention(
            query, keys, values, is_causal=new > 1, enable_gqa=True
        )
        for keys, values in stored
    ]


def quantized(weight: Tensor, bits: int) -> QuantizedMatrix:
    """The weight in groups of 32 inputs."""
    (matrix,) = quantize([[weight]], WeightFormat(bits, 32))  # type: ignore[arg-type]
    return matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["products", "attention"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", default="auto", help="instruction set")
    parser.add_argument("--wall", action="store_true", help="measure wall-clock time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    clock = time.perf_counter if given.wall else time.process_time
    kernels = Kernels.load(given.set)
    say(
        f"{kernels.instruction_set}, {given.threads} threads; {bandwidth(clock)}; bfloat16 times "
        f"quantised weights: {kernels.quantized_products}"
    )
    for what in given.what:
        say("")
        if what == "attention":
            attention(kernels.instruction_set, clock)
        elif what == "cache":
            cache(kernels.instruction_set, clock)
        elif what == "deterministic":
            deterministic(kernels.instruction_set, clock)
        else:
            products(kernels, clock)


if __name__ == "__main__":
    main()
