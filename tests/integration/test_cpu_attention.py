"""Attention ``cpu`` in the engine, and its memory accesses under AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from paged_backends.kernels.build import CannotCompile, library
from paged_backends.kernels.cpu.bindings import UNITS
from paged_backends.kernels.cpu.compiler import (
    EMULATED,
    SETS,
    CppCompiler,
    NoSuchInstructions,
    choose,
    cpp_build,
)
from paged_core import LLM, SamplingParams
from paged_core.errors import SettingsError

pytestmark = pytest.mark.heavy


PROMPTS = ["Once upon a time", "2 + 2 =", "Hello", "The lighthouse keeper wrote"]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0)


def tokens(attention: str, **settings: object) -> list[list[int]]:
    with LLM(attention=attention, dtype="float32", num_blocks=128, **settings) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


WAYS: dict[str, dict[str, object]] = {
    "chunks": {"block_size": 5, "scheduler": {"max_num_batched_tokens": 9}},
    "recompute": {"block_size": 4, "num_blocks": 16},
    "swap": {"block_size": 4, "num_blocks": 16, "preemption": "swap"},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_int8_cache_gives_the_same_tokens_however_they_are_scheduled(way: str) -> None:
    """Scales go wherever their codes go; a second round finds them in the prefix cache."""
    chosen: dict[str, Any] = {"attention": "cpu", "kv_cache_dtype": "int8", "deterministic": True}
    sampled = SamplingParams(max_tokens=16, temperature=1.0, n=2, seed=1, ignore_eos=True)
    preempted, rounds = 0, []
    with LLM(**chosen, block_size=4, num_blocks=128) as llm:
        expected = [
            part.token_ids for out in llm.generate(PROMPTS, sampled) for part in out.outputs
        ]
    with LLM(**chosen, **WAYS[way]) as llm:
        for _ in range(2):
            generations = llm.submit(PROMPTS, sampled)
            for _ in llm.run(generations):
                pass
            preempted += sum(generation.group.num_preemptions for generation in generations)
            outputs = [generation.output() for generation in generations]
            rounds.append([part.token_ids for out in outputs for part in out.outputs])
    assert rounds == [expected, expected]
    assert sum(output.num_cached_tokens for output in outputs)
    assert bool(preempted) == (way != "chunks")


def test_without_a_compiler_torch_serves_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PAGED_CORE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with structlog.testing.capture_logs() as logs:
        assert tokens("auto")
    chosen = [log for log in logs if log["event"] == "component_chosen"]
    (attention,) = (log for log in chosen if log["slot"] == "attention")
    assert attention["name"] == "torch"
    assert "install g++" in attention["refused"]["cpu"]
    with pytest.raises(SettingsError, match=r"install g\+\+"):
        tokens("cpu")


DRIVER = """
import ctypes, itertools, sys
from dataclasses import replace
from pathlib import Path
import torch
from paged_backends.attention.cpu_attention import CpuAttention
from paged_backends.attention.settings import CpuSettings
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.kernels.cpu.bindings import Bindings
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import Scene

poison = ctypes.CDLL(None).__asan_poison_memory_region
unpoison = ctypes.CDLL(None).__asan_unpoison_memory_region
poison.argtypes = unpoison.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
torch.set_num_threads(2)
bindings = Bindings.open(sys.argv[2], Path(sys.argv[1]))
CHUNKS = [(37, 1), (0, 45), (300, 1), (21, 6), (0, 1)]
FAMILY = range(len(CHUNKS), len(CHUNKS) + 9)  # these begin with the same blocks
CHUNKS += [(140 + index, 1) for index in FAMILY]
for dtype, kept, dim, group, window, deterministic in itertools.product(
    ["float32", "bfloat16"], ["auto", "int8"], [20, 64, 128], [1, 3], [None, 18], [False, True]
):
    backend = CpuAttention(
        CpuSettings(), AttentionContext(settings=EngineSettings(deterministic=deterministic))
    )
    backend._bindings = bindings
    layer = LayerSpec(
        num_heads=2 * group, num_kv_heads=2, head_dim=dim, scale=dim**-0.5, dtype=dtype,
        device="cpu", block_size=5, sliding_window=window, kv_cache_dtype=kept,
    )
    scene = Scene(backend, layer, CHUNKS, 1)
    for other in FAMILY[1:]:
        scene.share_blocks(owner=FAMILY[0], other=other, count=28)
    members = list(range(len(CHUNKS)))
    # every slot that no token has is made untouchable
    owned = set()
    for index, (cached, new) in enumerate(CHUNKS):
        for position in range(cached + new):
            owned.add((int(scene.tables[index, position // 5]), position % 5))
    size = scene.cache.shape[-1] * scene.cache.element_size()
    for block, offset in itertools.product(range(scene.num_blocks), range(5)):
        if (block, offset) not in owned:
            for part, head in itertools.product(range(2), range(2)):
                poison(scene.cache[block, part, head, offset].data_ptr(), size)
    scene.run(members)
    unpoison(scene.cache.data_ptr(), scene.cache.nbytes)
kernels = Kernels(bindings, 2)
def packed_weights(columns, width):
    weight = torch.randn(width, columns)
    yield kernels.pack(weight.bfloat16())
    for bits, group in itertools.product([4, 8], [16, 64, 128]):
        (matrix,) = quantize([[weight]], WeightFormat(bits, group))
        offsets = torch.randn_like(matrix.scales_OG) if group == 64 else None
        for products in {"integer", kernels.quantized_products}:
            ways = Kernels(bindings, 2, products)
            yield ways.pack_quantized(replace(matrix, offsets_OG=offsets))


for rows, columns, width in itertools.product([1, 15, 17, 40, 130], [30, 200], [20, 96]):
    for packed in packed_weights(columns, width):
        memory = torch.randn((rows + 1) * columns).bfloat16()
        x = memory[: rows * columns].view(rows, columns)
        out = torch.empty((rows + 1) * width, dtype=torch.bfloat16)
        behind = packed.data.data_ptr() + packed.data.nbytes
        poison(behind, 256)
        poison(memory[rows * columns :].data_ptr(), 2 * columns)
        poison(out[rows * width :].data_ptr(), 2 * width)
        kernels.linear(x, packed, out=out[: rows * width].view(rows, width))
        unpoison(behind, 256)
        unpoison(memory.data_ptr(), memory.nbytes)
        unpoison(out.data_ptr(), out.nbytes)
for rows, width in itertools.product([1, 3], [5, 64, 1000, 5001]):
    memory = torch.randn(rows * width + 64)
    logits = memory[: rows * width].view(rows, width)
    poison(memory[rows * width :].data_ptr(), 256)
    for top_k, top_p in itertools.product([0, 2, 40, 3000], [0.3, 1.0]):
        choices = torch.tensor([[1.0, 0.0, top_k, top_p, 0.7]] * rows, dtype=torch.float64)
        assert (kernels.sample(logits, choices) < width).all()
    kernels.argmax(logits)
    unpoison(memory.data_ptr(), memory.nbytes)
if len(sys.argv) > 3:  # prove that a forbidden access would be noticed
    poison(scene.cache.data_ptr(), scene.cache.nbytes)
    scene.run(members)
print("clean")
"""


@pytest.mark.long
@pytest.mark.parametrize("name", [one.name for one in (*SETS, *EMULATED)])
def test_no_access_outside_its_slots(name: str, tmp_path: Path) -> None:
    try:
        compiler = CppCompiler.find()
        (chosen,) = choose(name, compiler)
        flags = (*chosen.flags, "-fsanitize=address", "-fno-omit-frame-pointer")
        path = library(cpp_build("checked", UNITS, flags), compiler, tmp_path)
    except (CannotCompile, NoSuchInstructions) as error:
        pytest.skip(str(error))
    runtime = subprocess.run(
        [*compiler.command, "-print-file-name=libasan.so"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    if not Path(runtime).is_file():
        pytest.skip("the compiler has no AddressSanitizer")
    environ = {
        **os.environ,
        "LD_PRELOAD": str(Path(runtime).resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }

    def drive(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", DRIVER, str(path), name, *arguments],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    done = drive()
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "clean\n"
    broken = drive("break")
    assert "use-after-poison" in broken.stderr
