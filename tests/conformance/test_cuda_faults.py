"""Faults planted in the CUDA kernels are caught by scenes in which every access is looked at.

What is found here need not show in results: reads beyond a buffer, races, shared memory that was
not written, copies that were not waited for. The faults, each compiled from a changed copy of the
sources, are of the long run.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
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
from unit.attention_calls import LAYER, check, make

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiler")]


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
    "sinks": Checked([(15, 1), (0, 19), (400, 1)], {"sinks": (3.0, 1.0, 5.0, -2.0)}, sizes=(16,)),
    "heads": Checked([(20, 1), (0, 19), (17, 3)], {"num_heads": 8, "num_kv_heads": 2}, sizes=(16,)),
}
"""Scenes that faults name: the kernels for bfloat16 and a head dimension of 64 compute them."""
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_heads": 6, "head_dim": 128, "block_size": 5},
    "window": {"num_heads": 10, "sliding_window": 20, "soft_cap": 3.0},
    "odd": {
        "head_dim": 80,
        "block_size": 1,
        "alibi_slopes": (0.5, 0.1, 0.01, 0.0),
        "sinks": (1.0,) * 4,
    },
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
    "decode: the block after the last one": Fault(
        "cache.h", "sequence.table + slot.entry", "sequence.table + slot.entry + 1", "edges",
        f"{RESULTS}|beyond the end of tables",
    ),
    "decode: wrong group": Fault(
        "joint.h", "kv_head, kv_head * group + first", "kv_head, kv_head + first", "heads",
        f"{RESULTS}|{RACE}",
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
    "decode: no wait for the keys": Fault(
        "decode.h", "copy_wait<kStages * 2 - 1>();\n      __syncwarp();  // the keys",
        "copy_wait<kStages * 2>();\n      __syncwarp();  // the keys", "decodes", UNWRITTEN,
    ),
    "decode: no barrier of the warp after the keys are used": Fault(
        "decode.h", "      __syncwarp();  // all have used the keys\n", "", "unsplit",
        f"{RACE}|{UNWRITTEN}",
    ),
    "decode: a key's scale is lost": Fault(
        "decode.h", "scale_columns(scale, 0);", ";", "decodes", RESULTS, "fp8_e4m3"
    ),
    "write: a slot too far": Fault(
        "write.h", "int(slot % call.block_size)", "int(slot % call.block_size) + 1", "edges",
        f"{RESULTS}|{RACE}|beyond the end of cache",
    ),
    "tiles: a key too many": Fault(
        "tile_rows.h", "if (distance < 0 ||", "if (distance < -1 ||", "chunks", RESULTS
    ),
    "tiles: wrong group": Fault(
        "tile_rows.h", "(kv_head * group + row % group) * call.query_head",
        "(kv_head + row % group * call.kv_heads) * call.query_head", "heads", RESULTS,
    ),
    "tiles: the result is not rescaled": Fault(
        "tile_rows.h", "      out[band][j][i * 2] *= factor;\n", "", "chunks", RESULTS
    ),
    "tiles: no barrier after the values are used": Fault(
        "tiles.h", "      __syncthreads();  // all have used the values\n", "", "chunks",
        f"{RACE}|{UNWRITTEN}",
    ),
    "tiles: rows do not begin at 16 bytes": Fault(
        "tile_rows.h", "kGap = 8;", "kGap = 4;", "chunks", "a copy of 16 B"
    ),
    "tiles: rows lie in the same banks": Fault(
        "tile_rows.h", "kGap = 8;", "kGap = 0;", "chunks", "the same banks"
    ),
    "decode: rows lie in the same banks": Fault(
        "decode.h", "at[kKeys][kDim + kUnit];", "at[kKeys][kDim];", "decodes", "the same banks"
    ),
    "tiles: places beyond the last key": Fault(
        "tile_rows.h", "min(first + key, end - 1)", "first + key", "chunks",
        "beyond the end of tables",
    ),
    "warpgroups: keys are not shown": Fault(
        WGMMA, "      show_products();\n      __syncthreads();  // the keys",
        "      __syncthreads();  // the keys", "chunks", NOT_SHOWN,
    ),
    "warpgroups: no wait for the keys": Fault(
        WGMMA, "copy_wait<1>();\n      show_products();\n      __syncthreads();  // the keys",
        "copy_wait<2>();\n      show_products();\n      __syncthreads();  // the keys", "chunks",
        UNWRITTEN,
    ),
    "warpgroups: scores are not handed over": Fault(
        WGMMA, "    hand_over(scores[0]);\n", "", "chunks", HELD
    ),
    "warpgroups: scores are not waited for": Fault(
        WGMMA, "wait_for_products<0>(scores[0])", "wait_for_products<1>(scores[0])", "chunks",
        "changed before it was there",
    ),
    "warpgroups: pieces are not swizzled": Fault(
        WGMMA, "swizzled(kCount, row, dim)", "(row * 128 + dim * 2)", "chunks", RESULTS
    ),
    "write: the last head has no values": Fault(
        "write.h", "row < 2 * call.kv_heads;", "row < 2 * call.kv_heads - 1;", "edges", RESULTS
    ),
    "cache: blocks are numbered too low": Fault(
        "cache.h", "(__umulhi(number, call.block_factor) + number) >>",
        "__umulhi(number, call.block_factor) >>", "edges",
        f"{RESULTS}|beyond the end of",
    ),
    "decode: no sinks": Fault(
        "joint.h", "reciprocal(call, share.head + j, all.greatest,", "reciprocal(call, 0, 1e9f,",
        "sinks", RESULTS,
    ),
    "tiles: sinks of other heads": Fault(
        "tile_rows.h", "reciprocal(call, head,", "reciprocal(call, kv_head,", "sinks", RESULTS
    ),
    "combine: the sink of each split": Fault(
        "combine.h", "all.sum += factor * partial[1];",
        "all.sum += factor * partial[1] + (call.sinks ? all.weight(call.sinks[head]) : 0);",
        "sinks", RESULTS,
    ),
    "combine: results that were not split": Fault(
        "combine.h", "  if (splits == 1) return;\n", "", "uneven", RESULTS
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


def mixed(name: str, in_tiles: bool = False) -> Checked:
    """A batch of all kinds of chunks over a layer of this name."""
    return Checked(MIXED, LAYERS[name], (16,), in_tiles=in_tiles, multiprocessors=3)


CLEAN: dict[str, tuple[Checked, str, Order, dict[str, Any]]] = {
    **{name: (scene, "mma", "up", {}) for name, scene in SCENES.items()},
    **{
        f"{name}, float8": (SCENES[name], "mma", "up", {"kv_cache_dtype": "fp8_e4m3"})
        for name in ("decodes", "edges", "chunks")
    },
    **{f"{name}, warpgroups": (SCENES[name], "wgmma", "up", {}) for name in ("edges", "chunks")},
    "grouped": (mixed("grouped"), "mma", "up", {}),
    "float8, split": (mixed("float8"), "mma", "by chance", {}),
    "window, in tiles": (mixed("window", in_tiles=True), "mma", "down", {}),
    "plain, by rows": (mixed("plain"), "mma", "by chance", {"dtype": "float32"}),
    "odd, by rows": (mixed("odd"), "mma", "up", {"dtype": "float32"}),
    "window, by rows": (mixed("window", in_tiles=True), "mma", "up", {"dtype": "float32"}),
    "grouped, warpgroups": (mixed("grouped", in_tiles=True), "wgmma", "down", {}),
    "wide, warpgroups": (mixed("odd", in_tiles=True), "wgmma", "by chance", {"head_dim": 104}),
}
"""Scenes, tiles of prefill, orders of threads, and changes of the layer."""


SLOW = ("window, by rows", "odd, by rows", "grouped, warpgroups", "wide, warpgroups")
"""Scenes of the long run: kernels by rows and those for warpgroups are in others, too."""


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.long] * (one in SLOW)) for one in CLEAN]
)
def test_nothing_is_wrong(name: str) -> None:
    scene, prefill_tile, order, changes = CLEAN[name]
    scene.run(attention(scene, prefill_tile, order=order), **changes)


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
