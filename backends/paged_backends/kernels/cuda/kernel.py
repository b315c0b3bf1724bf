"""Kernels as Python sees them: variants, arguments, and the interface that launches them.

A variant is what is fixed when kernels are compiled; names follow from it. Arguments are structures
with the fields of those in ``call.h`` and ``copies.h``. How the keys of a row are divided, and how
blocks are copied, is decided here too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from paged_backends.device import to_device
from paged_backends.kernels.build import Build
from paged_backends.kernels.key_splits import MAX_SPLITS, choose_splits
from paged_core.interfaces.layer import LayerSpec


class Call(ctypes.Structure):
    """``Call`` of ``call.h``: the argument of all kernels of attention."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("query", "key", "value", "out", "keys", "values")),
        *((name, c_void_p) for name in ("query_start", "lengths", "tables", "slots")),
        *((name, c_void_p) for name in ("slopes", "sinks", "partials", "split")),
        *((name, c_int64) for name in ("query_token", "query_head", "key_token", "key_head")),
        *((name, c_int64) for name in ("value_token", "value_head")),
        *((name, c_int64) for name in ("cache_block", "cache_head")),
        *((name, c_int32) for name in ("table_width", "tokens", "sequences", "heads")),
        *((name, c_int32) for name in ("kv_heads", "dim", "block_size")),
        *((name, c_uint32) for name in ("block_factor", "block_shift")),
        *((name, c_int32) for name in ("window", "rows_are_tokens", "tiles_from")),
        *((name, c_int32) for name in ("max_splits", "num_splits")),
        ("scale", c_float),
        ("soft_cap", c_float),
    ]


class BlockCopies(ctypes.Structure):
    """``BlockCopies`` of ``copies.h``: the argument of the kernel that copies blocks."""

    _fields_: ClassVar[Any] = [
        *((name, c_void_p) for name in ("sources", "targets", "block_bytes", "pairs")),
        ("num_caches", c_int32),
        ("num_pairs", c_int32),
    ]


class Argument:
    """A structure that a kernel gets by value; it is read when the kernel is launched."""

    __slots__ = ("address", "pointers", "structure")

    def __init__(self, structure: ctypes.Structure) -> None:
        self.structure = structure
        self.address = ctypes.addressof(structure)
        self.pointers = (c_void_p * 1)(self.address)
        """Argument of ``cuLaunchKernel``: an address for each parameter."""


def divider(divisor: int) -> tuple[int, int]:
    """Return factor and shift by which a kernel divides numbers below ``2^31`` by ``divisor``.

    Source: T. Granlund, P. Montgomery, Division by invariant integers using multiplication, 1994.
    """
    shift = (divisor - 1).bit_length()
    return (((1 << shift) - divisor) << 32) // divisor + 1, shift


Grid = tuple[int, int, int]
"""Thread blocks in each dimension."""


class KernelError(RuntimeError):
    """A kernel could not be launched."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes that a compiled kernel tells the host."""

    threads: int
    """Threads of a thread block."""
    shared_bytes: int
    """Dynamic shared memory of a thread block."""
    rows: int
    """Query rows that a thread block takes; 0: does not apply."""
    argument_bytes: int
    """Size of its structure."""

    def check(self, kernel: str, argument_bytes: int) -> None:
        """Check that the structure is the one that Python fills.

        Raises:
            KernelError: its size is another.
        """
        if self.argument_bytes != argument_bytes:
            raise KernelError(
                f"kernel {kernel} takes a structure of {self.argument_bytes} bytes, and this one "
                f"has {argument_bytes}: the compiled kernels are of another version; delete them "
                "from the folder `kernels` of the cache (`paged-core doctor` names it)"
            )


class Kernel(Protocol):
    """One kernel of a module."""

    @property
    def geometry(self) -> Geometry:
        """Sizes that it tells the host."""

    @property
    def resident(self) -> int:
        """Thread blocks that a multiprocessor runs at once."""

    def launch(self, grid: Grid, argument: Argument, stream: int, /) -> None:
        """Run it in ``stream``, after what was put there before; does not wait.

        Raises:
            KernelError: it cannot be launched.
        """


class KernelModule(Protocol):
    """Kernels that were loaded together."""

    declares: bool
    """True if the module is to be told which memory kernels may use: see :meth:`declare`."""

    def kernel(self, name: str, argument_bytes: int, /) -> Kernel:
        """Return a kernel; it is kept.

        Args:
            argument_bytes: size of the structure that it will be given.

        Raises:
            KernelError: there is none of that name, or its structure has another size.
        """

    def stream(self) -> int:
        """Return the stream that PyTorch uses now."""

    def declare(self, buffers: dict[str, Tensor | None], /) -> None:
        """Say which tensors the next kernels may use, and no other memory."""


SOURCES = Path(__file__).parent / "source"
"""Folder of the kernels."""
DEVICE_SOURCES = Path(__file__).parent / "device"
"""Folder of what they include of a GPU."""

DTYPES = ("float32", "bfloat16", "float16")
DIMS = (64, 96, 128, 256)
MAX_HEAD_DIM = DIMS[-1]
HEAD_DIM_MULTIPLE = 8
MATRIX_ROWS = 16
"""Query heads of one key head that a thread block takes when it decodes on tensor cores."""
WARPGROUP_DIMS = (64, 128)
"""Head dimensions for which warpgroups may multiply tiles."""
GPU_GROUPS = tuple(range(1, 9))
"""Query heads that such a thread block may take in float32, by the variant."""

COPY_BLOCKS = "paged_copy_blocks"


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernels of layers that have this much in common."""

    dtype: str
    dim: int
    """The head dimension, rounded up to what there are kernels for."""
    group: int
    """Query heads of a thread block that decodes: :data:`MATRIX_ROWS`, and in float32 one of
    :data:`GPU_GROUPS`."""
    cache: str
    """``kv_cache_dtype`` of the layers."""
    warpgroups: bool = False
    """True if warpgroups multiply tiles; only where :meth:`warpgroup_problem` allows it."""

    @classmethod
    def of(cls, layer: LayerSpec, groups: Sequence[int] = GPU_GROUPS) -> Variant:
        """Return that of ``layer``, whose head dimension is at most :data:`MAX_HEAD_DIM`."""
        dim = next(dim for dim in DIMS if dim >= layer.head_dim)
        if layer.dtype == "float32":
            heads = layer.num_heads // layer.num_kv_heads
            group = next((group for group in groups if group >= heads), groups[-1])
        else:
            group = MATRIX_ROWS
        return cls(layer.dtype, dim, group, layer.kv_cache_dtype)

    @property
    def write(self) -> str:
        """Name of the kernel that writes keys and values into their slots."""
        return f"paged_write_{self.dtype}_{self.cache}"

    @property
    def decode(self) -> str:
        """Name of the kernel that computes single rows, split over the keys."""
        return f"paged_decode_{self.dtype}_{self.dim}_{self.group}_{self.cache}"

    @property
    def combine(self) -> str:
        """Name of the kernel that puts the results of splits together."""
        return f"paged_combine_{self.dtype}"

    @property
    def tiles(self) -> str | None:
        """Name of the kernel that computes many rows at once; there is none of float32."""
        if self.dtype == "float32":
            return None
        kind = "warpgroup_tiles" if self.warpgroups else "tiles"
        return f"paged_{kind}_{self.dtype}_{self.dim}_{self.cache}"

    def warpgroup_problem(self) -> str | None:
        """Return why there are no tiles of warpgroups for such layers, or ``None``."""
        if self.dtype == "float32":
            return "float32 is computed without tensor cores, which round it"
        if self.cache != "auto":
            return (
                f"kv_cache_dtype is {self.cache}, and warpgroups multiply what is cached as it is"
            )
        if self.dim not in WARPGROUP_DIMS:
            dims = " and ".join(map(str, WARPGROUP_DIMS))
            return f"warpgroups have kernels for head dimensions of {dims}, not for {self.dim}"
        return None

    def cubins(self, architecture: str) -> tuple[Build, Build]:
        """Return the builds of the kernels for GPUs of ``architecture``, such as ``sm_90``: of
        that which decodes, and of the others, which are the same for all groups."""
        macros = {"DTYPE": self.dtype, "DIM": str(self.dim), "CACHE": self.cache}
        others = macros | ({"WGMMA": "1"} if self.warpgroups else {})

        def build(unit: str, architecture: str, macros: Mapping[str, str]) -> Build:
            return Build(
                name="-".join(["cuda", unit, architecture, *macros.values()]),
                sources=SOURCES,
                units=(f"{unit}.cu",),
                flags=(
                    f"--gpu-architecture={architecture}",
                    "--std=c++17",
                    *(f"-DPAGED_{name}={value}" for name, value in macros.items()),
                ),
                includes=(DEVICE_SOURCES,),
                suffix=".cubin",
            )

        return (
            build("decode", architecture, macros | {"GROUP": str(self.group)}),
            build("others", f"{architecture}a" if self.warpgroups else architecture, others),
        )


class BlockCopier:
    """Copies blocks within several caches at once."""

    def __init__(self, module: KernelModule, device: torch.device) -> None:
        """
        Raises:
            KernelError: the module has no kernel for it.
        """
        self._module = module
        self._device = device
        self._kernel = module.kernel(COPY_BLOCKS, ctypes.sizeof(BlockCopies))

    def copy(
        self, caches: Sequence[Tensor], origins: Sequence[int], destinations: Sequence[int]
    ) -> None:
        """Copy blocks ``origins`` of each cache to its blocks ``destinations``, without waiting;
        all are read before any is written.

        Args:
            caches: contiguous; their first dimension counts blocks.

        Raises:
            ValueError: a block is not there, or a cache is not contiguous.
        """
        if not origins:
            return
        for cache in caches:
            if not cache.is_contiguous():
                strides = cache.stride()
                raise ValueError(f"the cache must be contiguous, and its strides are {strides}")
            for blocks in (origins, destinations):
                if not 0 <= min(blocks) <= max(blocks) < len(cache):
                    raise ValueError(
                        f"blocks {list(blocks)} are copied, and the cache has {len(cache)}"
                    )
        if set(origins).isdisjoint(destinations):
            self._launch(caches, origins, caches, destinations)
            return
        held = [one.new_empty((len(origins), *one.shape[1:])) for one in caches]
        places = range(len(origins))
        self._launch(caches, origins, held, places)
        self._launch(held, places, caches, destinations)

    def _launch(
        self,
        sources: Sequence[Tensor],
        origins: Sequence[int],
        targets: Sequence[Tensor],
        destinations: Sequence[int],
    ) -> None:
        count = len(sources)
        sizes = [one[0].numel() * one.element_size() for one in sources]
        addresses = [one.data_ptr() for one in (*sources, *targets)]
        pairs = np.array([origins, destinations]).T.ravel()
        numbers = to_device(np.array([*addresses, *sizes, *pairs], np.int64), self._device)
        base = numbers.data_ptr()
        copies = BlockCopies(
            sources=base,
            targets=base + 8 * count,
            block_bytes=base + 16 * count,
            pairs=base + 24 * count,
            num_caches=count,
            num_pairs=len(origins),
        )
        if self._module.declares:
            named = {f"source {place}": one for place, one in enumerate(sources)}
            named |= {f"target {place}": one for place, one in enumerate(targets)}
            self._module.declare({**named, "numbers": numbers})
        grid = (len(origins), count, 1)
        self._kernel.launch(grid, Argument(copies), self._module.stream())


_LEAST_KEYS = 64
"""Least keys of a split: reading them must outweigh starting it and combining the results."""
_FIXED_KEYS = 256
"""Keys of a split whose results must not depend on the batch."""


@dataclass(frozen=True, slots=True)
class KeySplits:
    """A row that sees n keys takes parts of ``max(keys, n / most rounded up)`` of them, a number
    that depends on n, ``keys`` and ``most`` alone."""

    keys: int
    """Keys of a part, unless there would be more than ``most``."""
    most: int
    """Parts of a row."""
    count: int
    """Parts of the row that sees most keys, in this batch."""

    def keys_for(self, other: KeySplits, longest: int) -> int:
        """Return the keys of a part with which rows that see ``longest`` keys at most have no more
        parts than with ``other``; :attr:`most` of this one stays the limit."""
        return max(self.keys, -(-longest // (min(self.most, other.most) * 16)) * 16)

    @classmethod
    def one(cls) -> KeySplits:
        """Return a single part, whatever a row sees."""
        return cls(_FIXED_KEYS, 1, 1)

    @classmethod
    def choose(cls, *, rows: int, blocks: int, longest: int, slots: int, fixed: bool) -> KeySplits:
        """Return the splits that take the least time.

        Args:
            rows: that are computed one by one.
            blocks: thread blocks of each, for one split.
            longest: keys that a row sees at most, in this batch or in any that is replayed.
            slots: thread blocks that the device runs at once.
            fixed: choose the same for all batches, so that the bits of a result do not depend on
                the batch.
        """
        if fixed:
            keys, most = _FIXED_KEYS, MAX_SPLITS
        else:
            keys = _LEAST_KEYS
            most = choose_splits(rows * blocks, longest, keys, slots, unit=16)
        return cls(keys, most, max(1, min(most, -(-longest // keys))))
