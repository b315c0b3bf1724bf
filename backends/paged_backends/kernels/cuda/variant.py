"""Variants of the kernels: what is fixed when they are compiled, and the names that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paged_backends.kernels.build import Build
from paged_core.interfaces.layer import LayerSpec

SOURCES = Path(__file__).parent / "source"
"""Folder of the kernels."""
SHIM_SOURCES = Path(__file__).parent.parent / "simt" / "source"
"""Folder of what makes them compile for CPUs; GPUs need its headers as well."""

DTYPES = ("float32", "bfloat16", "float16")
_DIMS = (64, 96, 128, 256)
MAX_HEAD_DIM = _DIMS[-1]
HEAD_DIM_MULTIPLE = 8
GPU_GROUPS = tuple(range(1, 9))
"""Query heads of one key head that a thread block may take when it decodes."""
EMULATED_GROUPS = (1, 4)
"""Those of them that are compiled for the CPU."""

COPY_BLOCKS = "paged_copy_blocks"


@dataclass(frozen=True, slots=True)
class Variant:
    """The kernels of layers that have this much in common."""

    dtype: str
    dim: int
    """The head dimension, rounded up to what there are kernels for."""
    group: int
    """One of :data:`GPU_GROUPS`."""
    cache: str
    """``kv_cache_dtype`` of the layers."""

    @classmethod
    def of(cls, layer: LayerSpec, groups: Sequence[int] = GPU_GROUPS) -> Variant:
        """Return that of ``layer``, whose head dimension is at most :data:`MAX_HEAD_DIM`."""
        dim = next(dim for dim in _DIMS if dim >= layer.head_dim)
        heads = layer.num_heads // layer.num_kv_heads
        group = next((group for group in groups if group >= heads), groups[-1])
        return cls(layer.dtype, dim, group, layer.kv_cache_dtype)

    @property
    def write(self) -> str:
        """Name of the kernel that writes keys and values into their slots."""
        return f"paged_write_{self.dtype}_{self.cache}"

    @property
    def decode(self) -> str:
        """Of that which computes single rows, split over the keys."""
        return f"paged_decode_{self.dtype}_{self.dim}_{self.group}_{self.cache}"

    @property
    def combine(self) -> str:
        """Of that which puts the results of splits together."""
        return f"paged_combine_{self.dtype}"

    @property
    def tiles(self) -> str | None:
        """Of that which computes many rows at once; there is none of float32."""
        if self.dtype == "float32":
            return None
        return f"paged_tiles_{self.dtype}_{self.dim}_{self.cache}"

    def cubin(self, architecture: str) -> Build:
        """Return the build of the kernels for GPUs of ``architecture``, such as ``sm_90``."""
        macros = {"DTYPE": self.dtype, "DIM": self.dim, "GROUP": self.group, "CACHE": self.cache}
        return Build(
            name=f"cuda-{architecture}-{self.dtype}-{self.dim}-{self.group}-{self.cache}",
            sources=SOURCES,
            units=("variant.cu",),
            flags=(
                f"--gpu-architecture={architecture}",
                "--std=c++17",
                *(f"-DPAGED_{name}={value}" for name, value in macros.items()),
            ),
            includes=(SHIM_SOURCES,),
            suffix=".cubin",
        )
