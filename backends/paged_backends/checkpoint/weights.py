"""Weights by name: views of memory-mapped safetensors files, of a pickle, or random."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.safetensors_file import SafetensorsFile
from paged_core.errors import CheckpointError

Shape = tuple[int, ...]


class Weights(Protocol):
    """A source of weights."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which most of them are stored."""

    def has(self, name: str, /) -> bool:
        """Whether there is a weight of this name."""

    def take(self, name: str, shape: Shape, /) -> Tensor:
        """Return a weight, on the CPU, in the dtype it is stored in; it is only to be read.

        Raises:
            CheckpointError: there is none of that name, or it has another shape.
        """

    def release(self) -> None:
        """Release the memory of weights that are no longer used; views stay valid."""


def open_weights(checkpoint: Checkpoint, *, allow_pickle: bool) -> Weights:
    """Open the weights of a checkpoint; each is read when it is first used.

    Raises:
        CheckpointError: they are missing, incomplete or in a form that may not be loaded.
    """
    checkpoint.check_weights(allow_pickle=allow_pickle)
    if checkpoint.weight_files:
        return StoredWeights(
            checkpoint, [SafetensorsFile(path) for path in checkpoint.weight_files]
        )
    return StoredWeights(checkpoint, [_Pickle(path) for path in checkpoint.pickle_files])


class _File(Protocol):
    def __iter__(self) -> Iterator[str]: ...

    def tensor(self, name: str) -> Tensor: ...

    def release(self) -> None: ...


class StoredWeights:
    """Weights of a checkpoint, found by name with or without the prefix of the bare decoder."""

    def __init__(self, checkpoint: Checkpoint, files: Sequence[_File]) -> None:
        self._checkpoint = checkpoint
        self._files = {name: file for file in files for name in file}
        self._all = files

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first matrix."""
        for name, file in self._files.items():
            tensor = file.tensor(name)
            if tensor.ndim > 1 and tensor.is_floating_point():
                return tensor.dtype
        return torch.float32

    def has(self, name: str, /) -> bool:
        return name in self._files or _bare(name) in self._files

    def take(self, name: str, shape: Shape, /) -> Tensor:
        found = name if name in self._files else _bare(name)
        folder = self._checkpoint.folder
        if found not in self._files:
            raise CheckpointError(
                f"{folder} lacks the weights {name}; it was saved from another kind of model, or "
                "incompletely"
            )
        tensor = self._files[found].tensor(found)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"in {folder}, {name} has another shape, {tuple(tensor.shape)}, than the "
                f"{shape} that config.json says; the two files do not belong together"
            )
        return tensor

    def release(self) -> None:
        for file in self._all:
            file.release()


class RandomWeights:
    """Random weights of a seed, for measuring what a configuration costs."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def has(self, name: str, /) -> bool:
        return not name.startswith("lm_head")

    def take(self, name: str, shape: Shape, /) -> Tensor:
        if len(shape) == 1:
            return torch.full(shape, float(name.endswith("weight")), dtype=self.dtype)
        # a short run of noise, repeated: drawing every number of a large model takes minutes
        noise = torch.randn(min(prod(shape), 1 << 20), generator=self._generator) * 0.02
        return noise.to(self.dtype).repeat(-(-prod(shape) // len(noise)))[: prod(shape)].view(shape)

    def release(self) -> None:
        """Do nothing: no memory is kept."""


class _Pickle:
    """A loaded pickle, with the methods of a safetensors file."""

    def __init__(self, path: Path) -> None:
        try:
            self._content = torch.load(path, "cpu", weights_only=True, mmap=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{path} is no pickle of weights that torch can read ({str(error)[:200]}); "
                "download it again, or convert it to safetensors"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._content)

    def tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._content[name]
        return tensor

    def release(self) -> None:
        """Do nothing: a pickle is released as a whole."""


def _bare(name: str) -> str:
    """Return the name that a checkpoint of the decoder without its head has for a weight."""
    return name.partition(".")[2]
