"""Faults planted in the CUDA kernels are caught by tests of the conformance class.

Each fault is compiled from a changed copy of the sources in the checked build, with the kernels for
one kind of layer. What is caught is named by the shim, or shows in the results.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from paged_backends.attention.cuda_attention import CudaAttention
from paged_backends.kernels.cuda.emulation import EmulatedModule
from paged_backends.kernels.cuda.kernel import SOURCES, KernelError, Variant
from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import AttentionBackend
from paged_core.interfaces.layer import KVCacheDtype
from paged_core.settings.schema import EngineSettings
from paged_testing import AttentionConformance
from unit.emulated_kernels import Workshop

KERNELS = """\
#include "kernels.h"
PAGED_WRITE(bfloat16, {cache})
PAGED_DECODE(bfloat16, 64, 16, {cache})
PAGED_COMBINE(bfloat16)
PAGED_TILES(bfloat16, 64, {cache})
"""
WARPGROUPS = "PAGED_WARPGROUP_TILES(bfloat16, 64, auto)\n"
"""The kernel that computes tiles besides."""

RESULTS = "values are wrong"
"""What is said where only the results show it."""
RACE = "with no barrier between"
UNWRITTEN = "of shared memory is read, and was never written"
NOT_SHOWN = "has written it and not shown it to products"
WGMMA = "warpgroup_tiles.h"
HELD = "were used, and not handed over since"


@dataclass(frozen=True)
class Fault:
    """A change of a source, and the test of the conformance class that catches it."""

    file: str
    old: str
    new: str
    test: str
    argument: Any
    """Of the test."""
    said: str
    """A pattern of the error."""
    cache: KVCacheDtype = "auto"

    @property
    def prefill_tile(self) -> str:
        return "wgmma" if self.file == WGMMA else "mma"

    multiprocessors: int = 132
    """Of the device: on few, the keys are split into few parts."""


EDGES = "test_equals_dense_attention_on_short_sequences", [(15, 1), (16, 1), (17, 1), (16, 16)]
LONG = "test_equals_dense_attention_on_short_sequences", [(400, 1)]
DECODES = "test_equals_dense_attention_on_short_sequences", [(150, 1)]
CHUNKS = "test_equals_dense_attention_on_short_sequences", [(140, 70)]
HEADS = "test_each_query_head_has_its_key_head", (8, 2)

FAULTS = {
    "decode: a key too many": Fault(
        "joint.h", "min(row.position + 1, begin", "min(row.position + 2, begin", *EDGES, RESULTS
    ),
    "decode: the last key is lost": Fault(
        "joint.h", "min(row.position + 1, begin", "min(row.position, begin", *EDGES, RESULTS
    ),
    "decode: the block after the last one": Fault(
        "cache.h", "sequence.table + slot.entry", "sequence.table + slot.entry + 1", *EDGES,
        f"{RESULTS}|beyond the end of tables",
    ),
    "decode: wrong group": Fault(
        "joint.h", "kv_head, kv_head * group + first", "kv_head, kv_head + first", *HEADS,
        f"{RESULTS}|{RACE}",
    ),
    "decode: the softmax is not rescaled": Fault(
        "decode.h", "    sum[i] *= factor;\n", "", *DECODES, RESULTS
    ),
    "decode: the result is not rescaled": Fault(
        "decode.h", "      out[column][i * 2 + 1] *= factor;\n", "", *DECODES, RESULTS
    ),
    "decode: a warp is not rescaled": Fault(
        "joint.h", "all.sum += factor * sum[part][j]", "all.sum += sum[part][j]", *DECODES, RESULTS
    ),
    "decode: a split is not rescaled": Fault(
        "combine.h", "all.sum += factor * partial[1]", "all.sum += partial[1]", *LONG, RESULTS
    ),
    "decode: a split too many": Fault(
        "combine.h", "split < splits;", "split <= splits;", *LONG,
        f"{RESULTS}|beyond the end of partials",
    ),
    "decode: no barrier after the keys": Fault(
        "decode.h", "    __syncthreads();  // the stages are used no more\n", "", *DECODES, RACE
    ),
    "decode: no barrier before the warps are put together": Fault(
        "decode.h", "    __syncthreads();  // the joint is complete\n", "", *DECODES,
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no wait for the keys": Fault(
        "decode.h", "copy_wait<kStages * 2 - 1>();\n      __syncwarp();  // the keys",
        "copy_wait<kStages * 2>();\n      __syncwarp();  // the keys", *DECODES, UNWRITTEN,
    ),
    "decode: no wait for the values": Fault(
        "decode.h", "copy_wait<kStages * 2 - 1>();\n      __syncwarp();  // the values",
        "copy_wait<kStages * 2>();\n      __syncwarp();  // the values", *DECODES, UNWRITTEN,
    ),
    "decode: no barrier of the warp before the keys are used": Fault(
        "decode.h", "      __syncwarp();  // the keys are there\n", "", *DECODES,
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no barrier of the warp before the values are used": Fault(
        "decode.h", "      __syncwarp();  // the values are there\n", "", *DECODES,
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no barrier of the warp after the keys are used": Fault(
        "decode.h", "      __syncwarp();  // all have used the keys\n", "", *LONG,
        f"{RACE}|{UNWRITTEN}", multiprocessors=1,
    ),
    "decode: no barrier of the warp after the values are used": Fault(
        "decode.h", "      __syncwarp();  // all have used the values\n", "", *LONG,
        f"{RACE}|{UNWRITTEN}", multiprocessors=1,
    ),
    "decode: keys of another step": Fault(
        "decode.h", "(step * kWarps + warp) * kKeys", "(step * kWarps + warp % 3) * kKeys",
        *DECODES, RESULTS,
    ),
    "decode: the weights of the other head": Fault(
        "decode.h", "scores[i / 2][i % 2 * 2], scores", "scores[i % 2][i / 2 * 2], scores",
        *DECODES, RESULTS,
    ),
    "decode: dimensions of the queries are swapped": Fault(
        "decode.h", "half * 8 + t * 2)", "half * 2 + t * 4)", *DECODES, RESULTS
    ),
    "decode: dimensions of the result are swapped": Fault(
        "decode.h", "(t * 2 + k) * 2 + column % 2", "t * 2 + k + column % 2 * 8", *DECODES, RESULTS,
        "fp8_e4m3",
    ),
    "decode: dimensions of two values are swapped": Fault(
        "decode.h", "0x3120), low", "0x3210), low", *DECODES, RESULTS, "fp8_e4m3"
    ),
    "decode: the keys after the last one count": Fault(
        "decode.h", "if (position >= share.end) score = -INFINITY;", "", *EDGES, RESULTS
    ),
    "decode: a key's scale is lost": Fault(
        "decode.h", "scale_columns(scale, 0);", ";", *DECODES, RESULTS, "fp8_e4m3"
    ),
    "decode: a value's scale is lost": Fault(
        "decode.h", "scale_columns(scale, kKeys);", ";", *DECODES, RESULTS, "fp8_e4m3"
    ),
    "decode: the scale of another key": Fault(
        "decode.h", "scale, first + column * 8 + t * 2 + k", "scale, first + column * 8 + t + k",
        *DECODES, RESULTS, "fp8_e4m3",
    ),
    "decode: the scale of another token": Fault(
        "decode.h", "offset % 4 * 8", "offset % 4 / 2 * 16", *EDGES, RESULTS, "fp8_e4m3"
    ),
    "write: a slot too far": Fault(
        "write.h", "int(slot % call.block_size)", "int(slot % call.block_size) + 1", *EDGES,
        f"{RESULTS}|{RACE}|beyond the end of cache",
    ),
    "write: the scale is lost": Fault(
        "write.h", "scale_of(254 - byte)", "scale_of(127)", *EDGES, RESULTS, "fp8_e4m3"
    ),
    "tiles: a key too many": Fault(
        "tile_rows.h", "if (distance < 0 ||", "if (distance < -1 ||", *CHUNKS, RESULTS
    ),
    "tiles: wrong group": Fault(
        "tile_rows.h", "(kv_head * group + row % group) * call.query_head",
        "(kv_head + row % group * call.kv_heads) * call.query_head", *HEADS, RESULTS,
    ),
    "tiles: the softmax is not rescaled": Fault(
        "tile_rows.h", "    sum[band][i] *= factor;\n", "", *CHUNKS, RESULTS
    ),
    "tiles: the result is not rescaled": Fault(
        "tile_rows.h", "      out[band][j][i * 2] *= factor;\n", "", *CHUNKS, RESULTS
    ),
    "tiles: no barrier before the places are used": Fault(
        "tiles.h", "    __syncthreads();  // the first places are there\n", "", *CHUNKS,
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: the places of other keys": Fault(
        "tiles.h", "shared.places[turn], *next", "shared.places[0], *next", *CHUNKS,
        f"{RESULTS}|{RACE}",
    ),
    "tiles: no barrier before the keys are used": Fault(
        "tiles.h", "      __syncthreads();  // the keys are there\n", "", *CHUNKS,
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no barrier after the keys are used": Fault(
        "tiles.h", "      __syncthreads();  // all have used the keys\n", "", *CHUNKS,
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no barrier before the values are used": Fault(
        "tiles.h", "      __syncthreads();  // the values are there\n", "", *CHUNKS,
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no barrier after the values are used": Fault(
        "tiles.h", "      __syncthreads();  // all have used the values\n", "", *CHUNKS,
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no wait for the keys": Fault(
        "tiles.h", "copy_wait<1>();\n      shared.keys", "copy_wait<2>();\n      shared.keys",
        *CHUNKS, UNWRITTEN,
    ),
    "tiles: no wait for the values": Fault(
        "tiles.h", "copy_wait<1>();\n      shared.values", "copy_wait<2>();\n      shared.values",
        *CHUNKS, UNWRITTEN,
    ),
    "tiles: columns of the values are swapped": Fault(
        "tiles.h", "(step * 16 + lane % 16, j * 8 + lane / 16 * 8)",
        "(step * 16 + lane / 16 * 8 + lane % 8, j * 8 + lane / 8 % 2 * 8)", *CHUNKS, RESULTS,
    ),
    "tiles: rows do not begin at 16 bytes": Fault(
        "tile_rows.h", "kGap = 8;", "kGap = 4;", *CHUNKS, "a copy of 16 B"
    ),
    "tiles: a scale is lost": Fault(
        "tile_rows.h", "floats.at[d] *= scale", "floats.at[d] *= 1", *CHUNKS, RESULTS, "fp8_e4m3"
    ),
    "tiles: places beyond the last key": Fault(
        "tile_rows.h", "min(first + key, end - 1)", "first + key", *CHUNKS,
        "beyond the end of tables",
    ),
    "tiles: the place of another row": Fault(
        "tile_rows.h", "some[i] = places[row_of(first + i)]", "some[i] = places[row_of(first)]",
        *CHUNKS, RESULTS,
    ),
    "tiles: another row's scale": Fault(
        "tile_rows.h", "unsigned(places[row_of(i)].scale)", "unsigned(places[row_of(0)].scale)",
        *CHUNKS, RESULTS, "fp8_e4m3",
    ),
    "warpgroups: keys are not shown": Fault(
        WGMMA, "      show_products();\n      __syncthreads();  // the keys",
        "      __syncthreads();  // the keys", *CHUNKS, NOT_SHOWN,
    ),
    "warpgroups: values are not shown": Fault(
        WGMMA, "      show_products();\n      __syncthreads();  // the values",
        "      __syncthreads();  // the values", *CHUNKS, NOT_SHOWN,
    ),
    "warpgroups: no barrier before the keys are used": Fault(
        WGMMA, "      __syncthreads();  // the keys are there, and all have used those before\n",
        "", *CHUNKS, f"{RACE}|{UNWRITTEN}|{NOT_SHOWN}",
    ),
    "warpgroups: no barrier before the values are used": Fault(
        WGMMA, "      __syncthreads();  // the values are there, and all have used those before\n",
        "", *CHUNKS, f"{RACE}|{UNWRITTEN}|{NOT_SHOWN}",
    ),
    "warpgroups: no wait for the keys": Fault(
        WGMMA, "copy_wait<1>();\n      show_products();\n      __syncthreads();  // the keys",
        "copy_wait<2>();\n      show_products();\n      __syncthreads();  // the keys", *CHUNKS,
        UNWRITTEN,
    ),
    "warpgroups: no wait for the values": Fault(
        WGMMA, "copy_wait<1>();\n      show_products();\n      __syncthreads();  // the values",
        "copy_wait<2>();\n      show_products();\n      __syncthreads();  // the values", *CHUNKS,
        f"{UNWRITTEN}|a copy is never waited for",
    ),
    "warpgroups: the keys of another place": Fault(
        WGMMA, "shared.keys[turn].rows", "shared.keys[turn ^ 1].rows", *CHUNKS,
        f"{RACE}|{UNWRITTEN}",
    ),
    "warpgroups: places of the wrong keys": Fault(
        WGMMA, "find_places(first + 2 * kKeys", "find_places(first + kKeys", *CHUNKS, RESULTS
    ),
    "warpgroups: scores are not handed over": Fault(
        WGMMA, "    hand_over(scores[0]);\n", "", *CHUNKS, HELD
    ),
    "warpgroups: weights are not handed over": Fault(
        WGMMA, "hand_over(out[0], weights)", "hand_over(out[0])", *CHUNKS, HELD
    ),
    "warpgroups: the result is not handed over": Fault(
        WGMMA, "hand_over(out[0], weights)", "hand_over(weights)", *CHUNKS, HELD
    ),
    "warpgroups: scores are not committed": Fault(
        WGMMA, "    commit_products();\n    wait_for_products<0>(scores[0]);",
        "    wait_for_products<0>(scores[0]);", *CHUNKS, "changed before it was there",
    ),
    "warpgroups: scores are not waited for": Fault(
        WGMMA, "wait_for_products<0>(scores[0])", "wait_for_products<1>(scores[0])", *CHUNKS,
        "changed before it was there",
    ),
    "warpgroups: keys of another column": Fault(
        WGMMA, "b.plus(dim / 64 * kKeys * 128 + column)", "b.plus(dim / 64 * kKeys * 128)",
        *CHUNKS, RESULTS,
    ),
    "warpgroups: values of other rows": Fault(
        WGMMA, "b.plus(step * 16 * 128)", "b.plus(step * 8 * 128)", *CHUNKS, RESULTS
    ),
    "warpgroups: queries of the other warpgroup": Fault(
        WGMMA, "at(shared.queries.at + threadIdx.x / 128 * 64 * 128)", "at(shared.queries.at)",
        *CHUNKS, RESULTS,
    ),
    "warpgroups: pieces are not swizzled": Fault(
        WGMMA, "swizzled(kCount, row, dim)", "(row * 128 + dim * 2)", *CHUNKS, RESULTS
    ),
}  # fmt: skip

IN_SHORT = (
    "decode: a key too many",
    "decode: wrong group",
    "decode: the softmax is not rescaled",
    "decode: no barrier after the keys",
    "decode: no wait for the keys",
    "decode: no barrier of the warp before the values are used",
    "decode: a key's scale is lost",
    "tiles: no barrier before the values are used",
    "tiles: no wait for the keys",
    "tiles: places beyond the last key",
    "warpgroups: values are not shown",
    "warpgroups: scores are not handed over",
)
"""Those that are not slow."""


@dataclass
class OneModule:
    """A target whose only kernels are these."""

    module_: EmulatedModule
    count: int
    groups: Sequence[int] = (4,)

    def problem(self, device: torch.device, /) -> str | None:
        return None

    def multiprocessors(self, device: torch.device, /) -> int:
        return self.count

    def warpgroup_problem(self, device: torch.device, /) -> str | None:
        return None

    def module(self, variant: Variant, device: torch.device, /) -> EmulatedModule:
        return self.module_


def conformance(
    module: EmulatedModule,
    cache: KVCacheDtype,
    multiprocessors: int = 132,
    prefill_tile: str = "mma",
) -> AttentionConformance:
    """Return the class's tests, of the component with these kernels."""
    options = {"name": "cuda", "target": "emulated_checked", "prefill_tile": prefill_tile}

    class Case(AttentionConformance):
        component = options
        dtypes = ("bfloat16",)
        kv_cache_dtype = cache

        def make(self) -> AttentionBackend:
            made = self.build(AttentionContext(settings=EngineSettings()))
            assert isinstance(made, CudaAttention)
            made.target = OneModule(module, multiprocessors)
            return made

    return Case()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("faults"), checked=True)


def kernels(cache: KVCacheDtype) -> str:
    """Return the source of all kernels for one kind of layer."""
    return KERNELS.format(cache=cache) + (WARPGROUPS if cache == "auto" else "")


def build(workshop: Workshop, name: str, fault: Fault) -> EmulatedModule:
    """Return the kernels with the fault."""
    sources = workshop.folder / "".join(letter if letter.isalnum() else "_" for letter in name)
    shutil.copytree(SOURCES, sources)
    path = sources / fault.file
    text = path.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has another text"
    path.write_text(text.replace(fault.old, fault.new))
    unit = sources / f"{sources.name}.cu"
    unit.write_text(kernels(fault.cache))
    return workshop.module(unit)


def with_fault(name: str) -> Any:
    return pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.slow)


@pytest.mark.parametrize("name", [with_fault(name) for name in FAULTS])
def test_a_fault_is_caught(workshop: Workshop, name: str) -> None:
    fault = FAULTS[name]
    module = build(workshop, name, fault)
    case = conformance(module, fault.cache, fault.multiprocessors, fault.prefill_tile)
    with pytest.raises((AssertionError, KernelError), match=fault.said):
        getattr(case, fault.test)(fault.argument)


@pytest.mark.parametrize("cache", ["auto", pytest.param("fp8_e4m3", marks=pytest.mark.slow)])
def test_without_a_fault_nothing_is_caught(
    workshop: Workshop, tmp_path: Path, cache: KVCacheDtype
) -> None:
    unit = tmp_path / f"sound_{cache}.cu"
    unit.write_text(kernels(cache))
    module = workshop.module(unit)
    for prefill_tile in ("mma", "wgmma") if cache == "auto" else ("mma",):
        case = conformance(module, cache, prefill_tile=prefill_tile)
        for test, argument in (EDGES, DECODES, LONG, CHUNKS, HEADS):
            getattr(case, test)(argument)
