"""Quantised weights of checkpoints, kept in the user's cache directory.

They are made when a checkpoint is first loaded in a format, and mapped when it is loaded again;
made anew if the checkpoint has changed or the file is damaged. Where another would exceed the
folder's limit, those that were not used for the longest time are deleted first. Any of them may be
deleted at any time: a process that has mapped one keeps it.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from paged_backends.cache_folder import locked, make_private
from paged_backends.quantization.matrix import QuantizedWeights, Rows, shape_of
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.quantized_file import (
    DamagedFile,
    file_size,
    open_quantized,
    write_quantized,
)
from paged_backends.quantization.weight_format import Shape, WeightFormat
from paged_core.config.cache_dir import cache_dir
from paged_core.log import get_logger

MAX_BYTES = 32 << 30
"""What the folder takes at most, unless one file alone is larger."""
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
