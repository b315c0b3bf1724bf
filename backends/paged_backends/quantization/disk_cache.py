"""Quantised weights of checkpoints, kept in files of the user's cache directory.

They are made when a checkpoint is first loaded in a format, and mapped when it is loaded again;
made anew if the checkpoint has changed or the file is damaged. Where another would exceed the
folder's limit, those that were not used for the longest time are deleted first. Any of them may be
deleted at any time: a process that has mapped one keeps it.

A file is a safetensors file: a header, which follows from format and shapes alone, the codes of all
matrices, their scales, and a checksum of both. So it is sound if its header is the expected one,
its size too, and the checksum that of its data.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from paged_backends.cache_folder import locked, make_private
from paged_backends.quantization.matrix import QuantizedMatrix, QuantizedWeights, Rows, shape_of
from paged_backends.quantization.quantize import quantize, quantize_into
from paged_backends.quantization.weight_format import Shape, WeightFormat
from paged_core.log import get_logger
from paged_core.settings.environment import cache_dir

_ALIGNMENT = 64
_CHECKSUM = 4
"""Bytes of the checksum."""
_PIECE = 16 << 20
"""Bytes of which a thread computes the checksum at a time."""


class DamagedFile(Exception):
    """A file does not hold what it should."""


def file_size(weight_format: WeightFormat, shapes: Sequence[Shape]) -> int:
    """Return the bytes of a file of matrices of these shapes."""
    return _Layout(weight_format, shapes).size


def open_quantized(
    path: Path, weight_format: WeightFormat, shapes: Sequence[Shape]
) -> QuantizedWeights:
    """Return the matrices of a file, as views of the mapped file.

    Raises:
        DamagedFile: it does not hold matrices of this format and these shapes, or was changed.
        OSError: it cannot be read.
    """
    layout = _Layout(weight_format, shapes)
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != layout.size:
            raise DamagedFile(f"{path} has not the {layout.size} bytes that are expected")
        # private and writable, because torch warns about read-only buffers
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if mapped[: len(layout.header)] != layout.header:
        raise DamagedFile(f"{path} has another header than expected")
    if mapped[-_CHECKSUM:] != _checksum(mapped, len(layout.header)):
        raise DamagedFile(f"{path} has another checksum than its data")

    def view(dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
        flat = torch.frombuffer(mapped, dtype=dtype, count=prod(shape), offset=offset)
        return flat.view(shape)

    def release() -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)

    release()  # what was read for the checksum
    matrices = [
        QuantizedMatrix(
            weight_format,
            shape,
            view(torch.uint8, weight_format.codes_shape(shape), codes),
            view(torch.float32, weight_format.scales_shape(shape), scales),
        )
        for shape, codes, scales in zip(shapes, layout.codes, layout.scales, strict=True)
    ]
    return QuantizedWeights(matrices, release)


def write_quantized(
    path: Path,
    matrices: Sequence[Rows],
    weight_format: WeightFormat,
    *,
    release: Callable[[], None] = lambda: None,
) -> None:
    """Quantise matrices into a new file, chunk by chunk; no more than chunks are in memory.

    Args:
        release: as for :func:`~paged_backends.quantization.quantize.quantize_into`.

    Raises:
        OSError: it cannot be written; then there is no file.
    """
    layout = _Layout(weight_format, [shape_of(rows) for rows in matrices])

    def put(index: int, first: int, codes: Tensor, scales: Tensor) -> None:
        _write(file.fileno(), codes, layout.codes[index] + first * codes[0].nbytes)
        _write(file.fileno(), scales, layout.scales[index] + first * scales[0].nbytes)

    with path.open("x+b") as file:
        try:
            file.write(layout.header)
            file.truncate(layout.size)
            quantize_into(put, matrices, weight_format, release=release)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                checksum = _checksum(mapped, len(layout.header))
            file.seek(-_CHECKSUM, os.SEEK_END)
            file.write(checksum)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


class _Layout:
    """Where everything lies in a file."""

    def __init__(self, weight_format: WeightFormat, shapes: Sequence[Shape]) -> None:
        tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
        for index, shape in enumerate(shapes):
            codes = weight_format.codes_shape(shape)
            tensors[f"{index}.codes"] = "U8", codes, prod(codes)
        for index, shape in enumerate(shapes):
            scales = weight_format.scales_shape(shape)
            tensors[f"{index}.scales"] = "F32", scales, 4 * prod(scales)
        tensors["checksum"] = "U8", (_CHECKSUM,), _CHECKSUM
        entries: dict[str, object] = {"__metadata__": {"format": weight_format.name}}
        ends = [0]
        for name, (dtype, dims, num_bytes) in tensors.items():
            ends.append(ends[-1] + num_bytes)
            entries[name] = {"dtype": dtype, "shape": dims, "data_offsets": ends[-2:]}
        text = json.dumps(entries).encode()
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        self.header = struct.pack("<Q", len(text)) + text
        starts = [len(self.header) + end for end in ends]
        self.codes = starts[: len(shapes)]
        self.scales = starts[len(shapes) : 2 * len(shapes)]
        self.size = starts[-1]


def _write(descriptor: int, tensor: Tensor, offset: int) -> None:
    remaining = memoryview(tensor.numpy().data).cast("B")
    while remaining:
        written = os.pwrite(descriptor, remaining, offset)
        remaining, offset = remaining[written:], offset + written


def _checksum(mapped: mmap.mmap, start: int) -> bytes:
    """Return the checksum of what lies between ``start`` and the place of the checksum itself."""
    data = memoryview(mapped)[start:-_CHECKSUM]
    with data, ThreadPoolExecutor(torch.get_num_threads()) as pool:
        pieces = [data[begin : begin + _PIECE] for begin in range(0, len(data), _PIECE)]
        sums = list(pool.map(zlib.crc32, pieces))
        for piece in pieces:
            piece.release()
    return zlib.crc32(struct.pack(f"<{len(sums)}L", *sums)).to_bytes(_CHECKSUM, "little")


MAX_BYTES = 32 << 30
"""Bytes that the folder takes at most, unless one file alone is larger."""
_UNFINISHED = ".tmp"
_VERSION = 1
"""Part of the names of files: raised when matrices are quantised or stacked in another way."""

_log = get_logger()


class DiskCache:
    """A folder of quantised weights.

    Args:
        folder: where they are; ``None``: ``quantized`` in the user's cache directory.
        max_bytes: the limit of the folder.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder or cache_dir() / "quantized"
        self._max_bytes = max_bytes

    def weights(
        self,
        fingerprint: str,
        matrices: Sequence[Rows],
        weight_format: WeightFormat,
        *,
        release: Callable[[], None] = lambda: None,
    ) -> QuantizedWeights:
        """Return matrices quantised: from the folder, or made and kept there.

        If the folder cannot be written to, or the disk is full, they are made in memory.

        Args:
            fingerprint: of the checkpoint that the matrices are of, all that are quantised.
            release: as for :func:`~paged_backends.quantization.quantize.quantize_into`.
        """
        path = self._folder / f"{fingerprint}-{weight_format.name}-v{_VERSION}.safetensors"
        shapes = [shape_of(rows) for rows in matrices]
        started = perf_counter()
        try:
            make_private(self._folder)
            with locked(self._folder / "lock"):
                weights = _open(path, weight_format, shapes)
                cached = weights is not None
                if weights is None:
                    self._make_room(file_size(weight_format, shapes))
                    unfinished = path.with_suffix(_UNFINISHED)
                    write_quantized(unfinished, matrices, weight_format, release=release)
                    unfinished.replace(path)
                    weights = open_quantized(path, weight_format, shapes)
                os.utime(path)  # the time of its last use
        except (OSError, DamagedFile) as error:
            reason = str(error)
            _log.warning("quantized_weights_not_cached", folder=str(self._folder), reason=reason)
            return QuantizedWeights(quantize(matrices, weight_format, release=release))
        seconds = round(perf_counter() - started, 2)
        _log.info("weights_quantized", path=str(path), cached=cached, seconds=seconds)
        return weights

    def _make_room(self, num_bytes: int) -> None:
        """Delete files until another of ``num_bytes`` keeps the limit, or none is left.

        Raises:
            OSError: so much more would leave the disk nearly full.
        """
        for path in self._folder.glob(f"*{_UNFINISHED}"):
            path.unlink()  # of a process that was killed: this one holds the lock
        files = filter(Path.is_file, self._folder.glob("*.safetensors"))
        found = {path: path.stat() for path in files}
        total = sum(state.st_size for state in found.values())
        for path in sorted(found, key=lambda path: found[path].st_mtime_ns):
            if total + num_bytes <= self._max_bytes:
                break
            path.unlink()
            total -= found[path].st_size
            _log.info("quantized_weights_deleted", path=str(path), limit=self._max_bytes)
        free = shutil.disk_usage(self._folder).free
        if free < 2 * num_bytes:
            raise OSError(
                errno.ENOSPC, f"{free >> 20} MiB are free, and {2 * num_bytes >> 20} MiB are needed"
            )


def _open(
    path: Path, weight_format: WeightFormat, shapes: Sequence[Shape]
) -> QuantizedWeights | None:
    """Return what a file holds, or ``None`` if there is none or it is damaged."""
    if not path.is_file():  # what else may lie there is replaced
        return None
    try:
        return open_quantized(path, weight_format, shapes)
    except DamagedFile as error:
        _log.warning("quantized_weights_damaged", reason=str(error), consequence="made again")
        return None
