"""Faults planted in the CUDA kernels are caught by scenes in which every access is looked at.

What is found here need not show in results: reads beyond a buffer, races, shared memory that was
not written, copies that were not waited for. The scenes run over the kernels as they are with each
run of the heavy tests; the faults, each compiled from a changed copy of the sources, in the long
ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import pytest
import torch

from emulation.cuda_module import (
    EmulatedAttention,
    EmulatedModule,
    EmulatedTarget,
    Order,
    unavailable_reason,
)
from emulation.workshop import Workshop
from paged_backends.kernels.cuda.kernel import SOURCES, KernelError, Variant
from paged_core.interfaces.layer import KVCacheDtype
from paged_testing.attention_scene import Scene
from unit.attention_calls import LAYER, batch_of, check, make, tokens

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiler")]
ORDERS: Sequence[Order] = ("up", "down", "by chance")


@dataclass(frozen=True)
class Checked:
    """A batch, and the layers over which it is computed."""

    chunks: list[tuple[int, int]]
    layer: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = (1, 4)
    """Sizes of blocks."""
    in_tiles: bool = False
    multiprocessors: int = 132
    """Multiprocessors of the device: on few, the keys are split into few parts."""

    def run(self, made: EmulatedAttention, **changes: Any) -> None:
        """Compute it and compare with dense attention."""
        for size in self.sizes:
            of = replace(LAYER, **{"block_size": size, **self.layer, **changes})
            assert made.check(of) is None
            check(Scene(made, of, self.chunks, 9))


MIXED = [(37, 1), (0, 45), (130, 3), (270, 1), (0, 1)]
SCENES = {
    "edges": Checked([(15, 1), (16, 1), (17, 1), (16, 16)]),
    "decodes": Checked([(150, 1)]),
    "long": Checked([(400, 1)]),
    "unsplit": Checked([(400, 1)], multiprocessors=1),
    "uneven": Checked([(300, 1), (3, 1), (530, 1)]),
    "chunks": Checked([(140, 70)]),
    "heads": Checked([(20, 1), (0, 19), (17, 3)], {"num_heads": 8, "num_kv_heads": 2}, sizes=(16,)),
}
"""Scenes that faults name: the kernels for bfloat16 and a head dimension of 64 compute them."""
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_heads": 6, "head_dim": 128, "block_size": 5},
    "window": {"num_heads": 10, "sliding_window": 20, "soft_cap": 3.0},
    "odd": {"head_dim": 80, "block_size": 1, "alibi_slopes": (0.5, 0.1, 0.01, 0.0)},
    "float8": {"kv_cache_dtype": "fp8_e4m3", "block_size": 3, "num_heads": 2},
}


@dataclass(frozen=True)
class Fault:
    """A change of a source, and the scene that shows it."""

    file: str
    old: str
    new: str
    scene: str
    said: str
    """A pattern of the error."""
    cache: KVCacheDtype = "auto"

    @property
    def prefill_tile(self) -> str:
        return "wgmma" if self.file == WGMMA else "mma"


RESULTS = "values are wrong"
"""Said where only the results show it."""
RACE = "with no barrier between"
UNWRITTEN = "of shared memory is read, and was never written"
NOT_SHOWN = "has written it and not shown it to products"
WGMMA = "warpgroup_tiles.h"
HELD = "were used, and not handed over since"

FAULTS = {
    "decode: a key too many": Fault(
        "joint.h", "min(row.position + 1, begin", "min(row.position + 2, begin", "edges", RESULTS
    ),
    "decode: the last key is lost": Fault(
        "joint.h", "min(row.position + 1, begin", "min(row.position, begin", "edges", RESULTS
    ),
    "decode: the block after the last one": Fault(
        "cache.h", "sequence.table + slot.entry", "sequence.table + slot.entry + 1", "edges",
        f"{RESULTS}|beyond the end of tables",
    ),
    "decode: wrong group": Fault(
        "joint.h", "kv_head, kv_head * group + first", "kv_head, kv_head + first", "heads",
        f"{RESULTS}|{RACE}",
    ),
    "decode: the softmax is not rescaled": Fault(
        "decode.h", "    sum[i] *= factor;\n", "", "decodes", RESULTS
    ),
    "decode: the result is not rescaled": Fault(
        "decode.h", "      out[column][i * 2 + 1] *= factor;\n", "", "decodes", RESULTS
    ),
    "decode: a warp is not rescaled": Fault(
        "joint.h", "all.sum += factor * sum[part][j]", "all.sum += sum[part][j]", "decodes", RESULTS
    ),
    "decode: a split is not rescaled": Fault(
        "combine.h", "all.sum += factor * partial[1]", "all.sum += partial[1]", "long", RESULTS
    ),
    "decode: a split too many": Fault(
        "combine.h", "split < splits;", "split <= splits;", "long",
        f"{RESULTS}|beyond the end of partials",
    ),
    "decode: no barrier after the keys": Fault(
        "decode.h", "    __syncthreads();  // the stages are used no more\n", "", "decodes", RACE
    ),
    "decode: no barrier before the warps are put together": Fault(
        "decode.h", "    __syncthreads();  // the joint is complete\n", "", "decodes",
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no wait for the keys": Fault(
        "decode.h", "copy_wait<kStages * 2 - 1>();\n      __syncwarp();  // the keys",
        "copy_wait<kStages * 2>();\n      __syncwarp();  // the keys", "decodes", UNWRITTEN,
    ),
    "decode: no wait for the values": Fault(
        "decode.h", "copy_wait<kStages * 2 - 1>();\n      __syncwarp();  // the values",
        "copy_wait<kStages * 2>();\n      __syncwarp();  // the values", "decodes", UNWRITTEN,
    ),
    "decode: no barrier of the warp before the keys are used": Fault(
        "decode.h", "      __syncwarp();  // the keys are there\n", "", "decodes",
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no barrier of the warp before the values are used": Fault(
        "decode.h", "      __syncwarp();  // the values are there\n", "", "decodes",
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no barrier of the warp after the keys are used": Fault(
        "decode.h", "      __syncwarp();  // all have used the keys\n", "", "unsplit",
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: no barrier of the warp after the values are used": Fault(
        "decode.h", "      __syncwarp();  // all have used the values\n", "", "unsplit",
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: keys of another step": Fault(
        "decode.h", "(step * kWarps + warp) * kKeys", "(step * kWarps + warp % 3) * kKeys",
        "decodes", RESULTS,
    ),
    "decode: the weights of the other head": Fault(
        "decode.h", "scores[i / 2][i % 2 * 2], scores", "scores[i % 2][i / 2 * 2], scores",
        "decodes", RESULTS,
    ),
    "decode: dimensions of the queries are swapped": Fault(
        "decode.h", "half * 8 + t * 2)", "half * 2 + t * 4)", "decodes", RESULTS
    ),
    "decode: dimensions of the result are swapped": Fault(
        "decode.h", "(t * 2 + k) * 2 + column % 2", "t * 2 + k + column % 2 * 8", "decodes",
        RESULTS, "fp8_e4m3",
    ),
    "decode: dimensions of two values are swapped": Fault(
        "decode.h", "0x3120), low", "0x3210), low", "decodes", RESULTS, "fp8_e4m3"
    ),
    "decode: the keys after the last one count": Fault(
        "decode.h", "if (position >= share.end) score = -INFINITY;", "", "edges", RESULTS
    ),
    "decode: a key's scale is lost": Fault(
        "decode.h", "scale_columns(scale, 0);", ";", "decodes", RESULTS, "fp8_e4m3"
    ),
    "decode: a value's scale is lost": Fault(
        "decode.h", "scale_columns(scale, kKeys);", ";", "decodes", RESULTS, "fp8_e4m3"
    ),
    "decode: the scale of another key": Fault(
        "decode.h", "scale, first + column * 8 + t * 2 + k", "scale, first + column * 8 + t + k",
        "decodes", RESULTS, "fp8_e4m3",
    ),
    "decode: the scale of another token": Fault(
        "decode.h", "offset % 4 * 8", "offset % 4 / 2 * 16", "edges", RESULTS, "fp8_e4m3"
    ),
    "write: a slot too far": Fault(
        "write.h", "int(slot % call.block_size)", "int(slot % call.block_size) + 1", "edges",
        f"{RESULTS}|{RACE}|beyond the end of cache",
    ),
    "write: the scale is lost": Fault(
        "write.h", "scale_of(254 - byte)", "scale_of(127)", "edges", RESULTS, "fp8_e4m3"
    ),
    "tiles: a key too many": Fault(
        "tile_rows.h", "if (distance < 0 ||", "if (distance < -1 ||", "chunks", RESULTS
    ),
    "tiles: wrong group": Fault(
        "tile_rows.h", "(kv_head * group + row % group) * call.query_head",
        "(kv_head + row % group * call.kv_heads) * call.query_head", "heads", RESULTS,
    ),
    "tiles: the softmax is not rescaled": Fault(
        "tile_rows.h", "    sum[band][i] *= factor;\n", "", "chunks", RESULTS
    ),
    "tiles: the result is not rescaled": Fault(
        "tile_rows.h", "      out[band][j][i * 2] *= factor;\n", "", "chunks", RESULTS
    ),
    "tiles: no barrier before the places are used": Fault(
        "tiles.h", "    __syncthreads();  // the first places are there\n", "", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: the places of other keys": Fault(
        "tiles.h", "shared.places[turn], *next", "shared.places[0], *next", "chunks",
        f"{RESULTS}|{RACE}",
    ),
    "tiles: no barrier before the keys are used": Fault(
        "tiles.h", "      __syncthreads();  // the keys are there\n", "", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no barrier after the keys are used": Fault(
        "tiles.h", "      __syncthreads();  // all have used the keys\n", "", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no barrier before the values are used": Fault(
        "tiles.h", "      __syncthreads();  // the values are there\n", "", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no barrier after the values are used": Fault(
        "tiles.h", "      __syncthreads();  // all have used the values\n", "", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: no wait for the keys": Fault(
        "tiles.h", "copy_wait<1>();\n      shared.keys", "copy_wait<2>();\n      shared.keys",
        "chunks", UNWRITTEN,
    ),
    "tiles: no wait for the values": Fault(
        "tiles.h", "copy_wait<1>();\n      shared.values", "copy_wait<2>();\n      shared.values",
        "chunks", UNWRITTEN,
    ),
    "tiles: columns of the values are swapped": Fault(
        "tiles.h", "(step * 16 + lane % 16, j * 8 + lane / 16 * 8)",
        "(step * 16 + lane / 16 * 8 + lane % 8, j * 8 + lane / 8 % 2 * 8)", "chunks", RESULTS,
    ),
    "tiles: rows do not begin at 16 bytes": Fault(
        "tile_rows.h", "kGap = 8;", "kGap = 4;", "chunks", "a copy of 16 B"
    ),
    "tiles: a scale is lost": Fault(
        "tile_rows.h", "floats.at[d] *= scale", "floats.at[d] *= 1", "chunks", RESULTS, "fp8_e4m3"
    ),
    "tiles: places beyond the last key": Fault(
        "tile_rows.h", "min(first + key, end - 1)", "first + key", "chunks",
        "beyond the end of tables",
    ),
    "tiles: the place of another row": Fault(
        "tile_rows.h", "some[i] = places[row_of(first + i)]", "some[i] = places[row_of(first)]",
        "chunks", RESULTS,
    ),
    "tiles: another row's scale": Fault(
        "tile_rows.h", "unsigned(places[row_of(i)].scale)", "unsigned(places[row_of(0)].scale)",
        "chunks", RESULTS, "fp8_e4m3",
    ),
    "warpgroups: keys are not shown": Fault(
        WGMMA, "      show_products();\n      __syncthreads();  // the keys",
        "      __syncthreads();  // the keys", "chunks", NOT_SHOWN,
    ),
    "warpgroups: values are not shown": Fault(
        WGMMA, "      show_products();\n      __syncthreads();  // the values",
        "      __syncthreads();  // the values", "chunks", NOT_SHOWN,
    ),
    "warpgroups: no barrier before the keys are used": Fault(
        WGMMA, "      __syncthreads();  // the keys are there, and all have used those before\n",
        "", "chunks", f"{RACE}|{UNWRITTEN}|{NOT_SHOWN}",
    ),
    "warpgroups: no barrier before the values are used": Fault(
        WGMMA, "      __syncthreads();  // the values are there, and all have used those before\n",
        "", "chunks", f"{RACE}|{UNWRITTEN}|{NOT_SHOWN}",
    ),
    "warpgroups: no wait for the keys": Fault(
        WGMMA, "copy_wait<1>();\n      show_products();\n      __syncthreads();  // the keys",
        "copy_wait<2>();\n      show_products();\n      __syncthreads();  // the keys", "chunks",
        UNWRITTEN,
    ),
    "warpgroups: no wait for the values": Fault(
        WGMMA, "copy_wait<1>();\n      show_products();\n      __syncthreads();  // the values",
        "copy_wait<2>();\n      show_products();\n      __syncthreads();  // the values", "chunks",
        f"{UNWRITTEN}|a copy is never waited for",
    ),
    "warpgroups: the keys of another place": Fault(
        WGMMA, "shared.keys[turn].rows", "shared.keys[turn ^ 1].rows", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "warpgroups: places of the wrong keys": Fault(
        WGMMA, "find_places(first + 2 * kKeys", "find_places(first + kKeys", "chunks", RESULTS
    ),
    "warpgroups: scores are not handed over": Fault(
        WGMMA, "    hand_over(scores[0]);\n", "", "chunks", HELD
    ),
    "warpgroups: weights are not handed over": Fault(
        WGMMA, "hand_over(out[0], weights)", "hand_over(out[0])", "chunks", HELD
    ),
    "warpgroups: the result is not handed over": Fault(
        WGMMA, "hand_over(out[0], weights)", "hand_over(weights)", "chunks", HELD
    ),
    "warpgroups: scores are not committed": Fault(
        WGMMA, "    commit_products();\n    wait_for_products<0>(scores[0]);",
        "    wait_for_products<0>(scores[0]);", "chunks", "changed before it was there",
    ),
    "warpgroups: scores are not waited for": Fault(
        WGMMA, "wait_for_products<0>(scores[0])", "wait_for_products<1>(scores[0])", "chunks",
        "changed before it was there",
    ),
    "warpgroups: keys of another column": Fault(
        WGMMA, "b.plus(dim / 64 * kKeys * 128 + column)", "b.plus(dim / 64 * kKeys * 128)",
        "chunks", RESULTS,
    ),
    "warpgroups: values of other rows": Fault(
        WGMMA, "b.plus(step * 16 * 128)", "b.plus(step * 8 * 128)", "chunks", RESULTS
    ),
    "warpgroups: queries of the other warpgroup": Fault(
        WGMMA, "at(shared.queries.at + threadIdx.x / 128 * 64 * 128)", "at(shared.queries.at)",
        "chunks", RESULTS,
    ),
    "warpgroups: pieces are not swizzled": Fault(
        WGMMA, "swizzled(kCount, row, dim)", "(row * 128 + dim * 2)", "chunks", RESULTS
    ),
    "write: the last head has no values": Fault(
        "write.h", "row < 2 * call.kv_heads;", "row < 2 * call.kv_heads - 1;", "edges", RESULTS
    ),
    "cache: the scale of the next token": Fault(
        "cache.h", "* call.dim + offset}", "* call.dim + offset + 1}", "edges",
        f"{RESULTS}|beyond the end of cache|with no barrier between", "fp8_e4m3",
    ),
    "cache: blocks are numbered too low": Fault(
        "cache.h", "(__umulhi(number, call.block_factor) + number) >>",
        "__umulhi(number, call.block_factor) >>", "edges",
        f"{RESULTS}|beyond the end of",
    ),
    "combine: results that were not split": Fault(
        "combine.h", "  if (splits == 1) return;\n", "", "uneven", RESULTS
    ),
    "combine: values of the dimension before": Fault(
        "combine.h", "factor * partial[2 + d]", "factor * partial[1 + d]", "uneven", RESULTS
    ),
    "combine: splits of another row": Fault(
        "combine.h", "index * call.num_splits * (call.dim + 2)", "index * splits * (call.dim + 2)",
        "uneven", RESULTS,
    ),
}  # fmt: skip

KERNELS = """\
#include "kernels.h"
PAGED_WRITE(bfloat16, {cache})
PAGED_DECODE(bfloat16, 64, 16, {cache})
PAGED_COMBINE(bfloat16)
PAGED_TILES(bfloat16, 64, {cache})
"""
WARPGROUPS = "PAGED_WARPGROUP_TILES(bfloat16, 64, auto)\n"
"""The kernel that computes tiles besides."""


class Target(EmulatedTarget):
    """An emulation with so many multiprocessors, of all kernels or of these."""

    def __init__(self, multiprocessors: int, module: EmulatedModule | None = None) -> None:
        super().__init__(checked=True)
        self._count, self._module = multiprocessors, module

    def multiprocessors(self, device: torch.device, /) -> int:
        return self._count

    def module(self, variant: Variant, device: torch.device, /) -> EmulatedModule:
        return self._module or super().module(variant, device)


def attention(
    scene: Checked,
    prefill_tile: str = "mma",
    module: EmulatedModule | None = None,
    order: Order = "up",
) -> EmulatedAttention:
    options = {"name": "emulated", "checked": True, "prefill_tile": prefill_tile, "order": order}
    made: EmulatedAttention = make(options, deterministic=scene.in_tiles)
    made.target = Target(scene.multiprocessors, module)
    return made


@pytest.mark.parametrize("cache_dtype", ["auto", "fp8_e4m3"])
@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_wrong(name: str, cache_dtype: KVCacheDtype) -> None:
    SCENES[name].run(attention(SCENES[name]), kv_cache_dtype=cache_dtype)


@pytest.mark.parametrize("name", ["edges", "chunks", "heads"])
def test_nothing_is_wrong_with_warpgroups(name: str) -> None:
    SCENES[name].run(attention(SCENES[name], "wgmma"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_wrong_in_layers_of_every_kind(name: str, dtype: str) -> None:
    scene = Checked(MIXED, LAYERS[name], (16,), in_tiles=name == "window", multiprocessors=3)
    scene.run(attention(scene, order=ORDERS[len(name) % 3]), dtype=dtype)


@pytest.mark.parametrize("name", ["plain", "grouped", "window", "odd"])
def test_nothing_is_wrong_with_warpgroups_in_layers_of_every_kind(name: str) -> None:
    layer = {**LAYERS[name], **({"head_dim": 104} if name == "odd" else {})}
    scene = Checked(MIXED, layer, (16,), in_tiles=True, multiprocessors=3)
    scene.run(attention(scene, "wgmma", order=ORDERS[len(name) % 3]))


@pytest.fixture(scope="module")
def compiler() -> None:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("faults"), checked=True)


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(workshop: Workshop, name: str) -> None:
    fault = FAULTS[name]
    sources = workshop.folder / "".join(letter if letter.isalnum() else "_" for letter in name)
    shutil.copytree(SOURCES, sources)
    path = sources / fault.file
    text = path.read_text()
    assert text.count(fault.old) == 1, f"{fault.file} has another text"
    path.write_text(text.replace(fault.old, fault.new))
    unit = sources / f"{sources.name}.cu"
    unit.write_text(
        KERNELS.format(cache=fault.cache) + (WARPGROUPS if fault.cache == "auto" else "")
    )
    scene = SCENES[fault.scene]
    made = attention(scene, fault.prefill_tile, workshop.module(unit))
    with pytest.raises((AssertionError, KernelError), match=fault.said):
        scene.run(made, kv_cache_dtype=fault.cache)


# ---------------------------------------------------------------------- what only a check shows


def test_an_access_outside_of_the_tensors_is_named() -> None:
    """A slot is not looked at before the kernels get it: a GPU would have to be waited for.

    No other tensor lies behind the cache: the nearest one is named.
    """
    made = attention(SCENES["edges"])
    cache_ = torch.zeros(made.cache_shape(LAYER, 60), dtype=torch.bfloat16)
    cache_ = cache_.flatten()[: prod(shape := made.cache_shape(LAYER, 6))].view(shape)
    batch = batch_of([(4, 1)])
    batch.slot_mapping.fill_(6 * LAYER.block_size)
    said = r"kernel paged_write_bfloat16_auto: .* beyond the end of cache"
    with pytest.raises(KernelError, match=said):
        made.bind(LAYER, cache_).forward(*tokens(LAYER, 1), made.plan(batch))


def test_scratch_memory_that_was_not_written_is_found() -> None:
    """A combination of more splits than were computed."""
    made = attention(SCENES["edges"])
    cache_ = torch.zeros(made.cache_shape(LAYER, 60), dtype=torch.bfloat16)
    bound, plan = made.bind(LAYER, cache_), made.plan(batch_of([(900, 1)]))
    launches = bound._take(plan)  # type: ignore[attr-defined]
    _, (decode, (rows, blocks, splits)), _ = launches.kernels
    assert splits > 1
    fewer = tuple(
        (kernel, (rows, blocks, splits - 1)) if kernel is decode else (kernel, grid)
        for kernel, grid in launches.kernels
    )
    bound._launches = replace(launches, kernels=fewer)  # type: ignore[attr-defined]
    assert bound.forward(*tokens(LAYER, 1), plan).isnan().any()
