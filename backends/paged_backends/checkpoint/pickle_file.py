"""One pickle of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from torch import Tensor

from paged_core.errors import CheckpointError


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
            raise self._wrong(" ".join(str(error).split())[:200]) from error
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

    def tensor(self, name: str) -> Tensor:
        """Return one tensor; it is only to be read. Raises what :meth:`dtype` raises."""
        self.dtype(name)
        return self._content[name]

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
