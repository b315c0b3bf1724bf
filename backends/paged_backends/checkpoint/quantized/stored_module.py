"""The tensors of one linear layer, under the name of its module."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paged_backends.checkpoint.safetensors_file import SafetensorsFile
from paged_core.errors import CheckpointError

Shape = tuple[int, ...]


class StoredModule:
    """Tensors by the last part of their names."""

    def __init__(self, name: str, files: Mapping[str, SafetensorsFile]) -> None:
        """Take them from ``files``, the file of each tensor by its whole name."""
        self.name = name
        self._files = files
        self.taken: set[str] = set()
        """Whole names of those that were read."""

    def has(self, part: str) -> bool:
        """Whether there is a tensor of this name."""
        return f"{self.name}.{part}" in self._files

    def shape(self, part: str) -> Shape:
        """Return the shape of a tensor that is there."""
        return self._file(part).shape(f"{self.name}.{part}")

    def dtype(self, part: str) -> torch.dtype:
        """Return the dtype of a tensor. Raises :class:`CheckpointError` if it is missing."""
        return self._file(part).stored(f"{self.name}.{part}").dtype

    def skip(self, part: str) -> None:
        """Say that a tensor is known, if it is there."""
        if self.has(part):
            self.taken.add(f"{self.name}.{part}")

    def skip_zeros(self, part: str) -> None:
        """Say that a tensor is known, if it is there and all of its numbers are 0."""
        if self.has(part) and not bool(self._file(part).stored(f"{self.name}.{part}").any()):
            self.skip(part)

    def integers(self, part: str, shape: Shape, *dtypes: torch.dtype) -> Tensor:
        """Return a tensor of integers, of 32 bits unless ``dtypes`` are given; only to be read.

        Raises:
            CheckpointError: it is missing, or of another shape or dtype.
        """
        return self._tensor(part, shape, dtypes or (torch.int32,))

    def numbers(self, part: str, shape: Shape) -> Tensor:
        """Return a tensor of floating-point numbers, in float32. Raises as :meth:`integers`."""
        return self._tensor(part, shape, (torch.float16, torch.bfloat16, torch.float32)).float()

    def _tensor(self, part: str, shape: Shape, dtypes: tuple[torch.dtype, ...]) -> Tensor:
        name, file = f"{self.name}.{part}", self._file(part)
        tensor = file.stored(name)
        if tensor.dtype not in dtypes or tensor.shape != shape:
            allowed = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise CheckpointError(
                f"{name} in {file.path} is {str(tensor.dtype).removeprefix('torch.')} of the shape "
                f"{tuple(tensor.shape)}, and its matrix needs {allowed} of the shape {shape}; the "
                "configuration and the weights do not belong together"
            )
        self.taken.add(name)
        return tensor

    def _file(self, part: str) -> SafetensorsFile:
        file = self._files.get(f"{self.name}.{part}")
        if file is None:
            raise CheckpointError(
                f"the quantised weights of {self.name} lack {part}; download the checkpoint again"
            )
        return file

    def wrong(self, part: str, reason: str) -> CheckpointError:
        """Return the error for a tensor whose numbers make no sense."""
        name = f"{self.name}.{part}"
        return CheckpointError(
            f"{name} in {self._files[name].path} {reason}; download the checkpoint again"
        )

    def groups(self, part: str, inputs: int, size: int, num_groups: int) -> Tensor | None:
        """Return the group of each input, int64, or ``None`` if they follow one another.

        Raises:
            CheckpointError: as :meth:`integers`, or one is not among ``num_groups``.
        """
        groups = self.integers(part, (inputs,)).long()
        if bool((groups < 0).any()) or bool((groups >= num_groups).any()):
            raise self.wrong(part, f"names groups that are not among its {num_groups}")
        return None if torch.equal(groups, torch.arange(inputs) // size) else groups
