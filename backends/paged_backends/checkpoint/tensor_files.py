"""Files of tensors: safetensors, mapped into memory so that nothing is read before it is used, and
pickles.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from torch import Tensor

from paged_backends.checkpoint.json_file import one_line
from paged_backends.checkpoint.weight_files import read_header
from paged_core.errors import CheckpointError

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_INTEGERS = {
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}


class Part(NamedTuple):
    """Some rows and columns of a matrix, or some numbers of a vector."""

    rows: slice = slice(None)
    columns: slice = slice(None)

    @property
    def transposed(self) -> Part:
        """The same part of the transposed matrix."""
        return Part(self.columns, self.rows)

    def of(self, tensor: Tensor) -> Tensor:
        """Return it as a view: what lies beside it in a mapped file is not read."""
        return tensor[self.rows] if tensor.ndim == 1 else tensor[self.rows, self.columns]


WHOLE = Part()


_LARGE = 1 << 19
"""Bytes of a tensor that gets pages of its own."""


def own_pages(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return memory for numbers; if they are many, it goes back to the system when it is dropped.

    The heap would keep holes where large weights were.
    """
    size = prod(shape) * dtype.itemsize
    if size < _LARGE:
        return torch.empty(*shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


class MappedFile:
    """A file whose tensors are views of it: what is not used is not read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # private and writable, because torch warns about read-only buffers
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def view(self, begin: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor that begins at a byte; it is only to be read."""
        count = prod(shape)
        if not count:
            return torch.empty(*shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=begin).view(*shape)

    def release(self) -> None:
        """Release the pages that were read; they are read from the file again if they are used."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class SafetensorsFile(MappedFile):
    """Tensors by name, as views of the mapped file.

    Raises:
        CheckpointError: the file is corrupt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = read_header(path)
        super().__init__(path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor.

        Raises:
            CheckpointError: its numbers are no plain floating-point numbers.
        """
        stored = self._tensors[name]
        dtype = _DTYPES.get(stored.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{name} in {self.path} is stored as {stored.dtype}, and weights are stored as "
                f"one of {', '.join(_DTYPES)}; a quantised model needs a quantization_config"
            )
        return dtype

    def tensor(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return one tensor; it is only to be read. Raises what :meth:`dtype` raises."""
        return part.of(self.view(self._tensors[name].begin, self.shape(name), self.dtype(name)))

    def stored(self, name: str) -> Tensor:
        """Return one tensor, which may be of integers; it is only to be read.

        Raises:
            CheckpointError: it is of a type that no weights are stored in.
        """
        stored = self._tensors[name]
        dtype = _DTYPES.get(stored.dtype) or _INTEGERS.get(stored.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{name} in {self.path} is stored as {stored.dtype}, and quantised weights are "
                f"stored as one of {', '.join(_INTEGERS)}, with scales in one of "
                f"{', '.join(_DTYPES)}; take another quantisation of the model"
            )
        return self.view(stored.begin, stored.shape, dtype)


class PickleFile:
    """Tensors by name, with the methods of a safetensors file.

    Raises:
        CheckpointError: the file holds anything else, or tensors larger than their data.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        mapped = is_zipfile(path)
        if mapped:
            self._check_archive()
        try:
            content = torch.load(path, "cpu", weights_only=True, mmap=mapped)
        except UnpicklingError as error:
            raise self._wrong("it is damaged, or holds more than tensors") from error
        except Exception as error:  # damaged instructions of a pickle raise anything
            raise self._wrong(one_line(error)) from error
        if not isinstance(content, Mapping):
            raise self._wrong(f"it holds one {type(content).__name__}")
        for name, tensor in content.items():
            self._check(name, tensor)
        self._content: Mapping[str, Tensor] = content

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one tensor."""
        return tuple(self._content[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of one tensor.

        Raises:
            CheckpointError: its numbers are no floating-point numbers.
        """
        dtype = self._content[name].dtype
        if not dtype.is_floating_point:
            raise CheckpointError(
                f"{name} in {self._path} is stored as {dtype}, and weights are floating-point "
                "numbers; a quantised model needs a quantization_config"
            )
        return dtype

    def tensor(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return one tensor; it is only to be read. Raises what :meth:`dtype` raises."""
        self.dtype(name)
        return part.of(self._content[name])

    def release(self) -> None:
        """Do nothing: a pickle is released as a whole."""

    def _check_archive(self) -> None:
        """Refuse an archive that expands: torch stores its records as they are."""
        try:
            records = ZipFile(self._path).infolist()
        except (OSError, ValueError, BadZipFile, NotImplementedError) as error:
            raise self._wrong(str(error)) from error
        if any(record.compress_type != ZIP_STORED for record in records):
            raise self._wrong("its archive is compressed")

    def _check(self, name: object, tensor: object) -> None:
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or not _is_plain(tensor):
            raise self._wrong(f"{str(name)[:100]} is no plain tensor")
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise self._wrong(f"{name[:100]} is larger than its data")

    def _wrong(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is no pickle of weights that torch can read ({reason}); download it "
            "again, or convert it to safetensors"
        )


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
