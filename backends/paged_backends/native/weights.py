"""Weights by name: views of memory-mapped safetensors files, of a pickle, or made up."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paged_backends.checkpoint import Checkpoint
from paged_core.errors import CheckpointError

Shape = tuple[int, ...]


class Weights(Protocol):
    """Where weights come from."""

    @property
    def dtype(self) -> torch.dtype:
        """The format that they are stored in, or most of them."""

    def has(self, name: str, /) -> bool:
        """Whether there is a weight of this name."""

    def take(self, name: str, shape: Shape, /) -> Tensor:
        """Return a weight, on the processor, in the format it is stored in; not to be written to.

        Raises:
            CheckpointError: there is none of that name, or it has another shape.
        """


def open_weights(checkpoint: Checkpoint, *, allow_pickle: bool) -> Weights:
    """Open the weights of a checkpoint; what they hold is read when it is first used.

    Raises:
        CheckpointError: they are missing, incomplete or in a form that may not be loaded.
    """
    checkpoint.check_weights(allow_pickle=allow_pickle)
    return StoredWeights(checkpoint)


class StoredWeights:
    """Weights of a checkpoint. Names are found with or without the prefix of the bare decoder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files: dict[str, Any] = {}
        """By name of the weight: what ``get_tensor`` is asked of."""
        try:
            for path in checkpoint.weight_files:
                file: Any = safe_open(path, framework="pt", device="cpu")
                self._files.update(dict.fromkeys(file.keys(), file))
            if not checkpoint.weight_files:
                for path in checkpoint.pickle_files:
                    content = _Pickle(torch.load(path, "cpu", weights_only=True, mmap=True))
                    self._files.update(dict.fromkeys(content.names, content))
        except (SafetensorError, OSError, RuntimeError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"the weights in {checkpoint.folder} are corrupt ({str(error)[:200]}); download "
                "them again"
            ) from error

    @property
    def dtype(self) -> torch.dtype:
        """The format of the first matrix."""
        for name, file in self._files.items():
            tensor: Tensor = file.get_tensor(name)
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
        tensor: Tensor = self._files[found].get_tensor(found)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"in {folder}, {name} has another shape, {tuple(tensor.shape)}, than the "
                f"{shape} that config.json says; the two files do not belong together"
            )
        return tensor


class RandomWeights:
    """Weights made up from a seed, for measuring what a configuration costs."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def has(self, name: str, /) -> bool:
        return not name.startswith("lm_head")

    def take(self, name: str, shape: Shape, /) -> Tensor:
        if len(shape) == 1:
            return torch.full(shape, float(name.endswith("weight")), dtype=self.dtype)
        # a short run of noise, over and over: making up every number of a large model takes minutes
        noise = torch.randn(min(prod(shape), 1 << 20), generator=self._generator) * 0.02
        return noise.to(self.dtype).repeat(-(-prod(shape) // len(noise)))[: prod(shape)].view(shape)


class _Pickle:
    """Gives a loaded pickle the face of an open safetensors file."""

    def __init__(self, content: dict[str, Tensor]) -> None:
        self._content = content

    @property
    def names(self) -> Sequence[str]:
        return list(self._content)

    def get_tensor(self, name: str) -> Tensor:
        return self._content[name]


def _bare(name: str) -> str:
    """Return the name that a checkpoint of the decoder without its head has for a weight."""
    return name.partition(".")[2]
