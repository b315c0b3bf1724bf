"""Weights by name: views of memory-mapped safetensors files, of a pickle, or random."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor

from paged_backends.checkpoint.config_fields import check_sizes
from paged_backends.checkpoint.folder import ADAPTER, Checkpoint
from paged_backends.checkpoint.gguf.tensors import MappedGguf, QuantizedTensor
from paged_backends.checkpoint.json_file import damaged
from paged_backends.checkpoint.quantized.layout import Layout, QuantizedModules
from paged_backends.checkpoint.tensor_files import WHOLE, Part, PickleFile, SafetensorsFile
from paged_backends.checkpoint.weight_names import (
    check_quantized,
    check_unused,
    is_computed,
    layer_number,
    other_layers,
)
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape as MatrixShape
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.log import get_logger

Shape = tuple[int, ...]


class Weights(Protocol):
    """A source of weights: none of them quantised, unless it says otherwise.

    What takes a ``part`` reads nothing else, and its ``shape`` is that of the whole.
    """

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which most of them are stored."""

    @property
    def is_quantized(self) -> bool:
        """Return whether any of them are quantised."""
        return False

    def has(self, name: str, /) -> bool:
        """Return whether there is a weight of this name."""

    def take(self, name: str, shape: Shape, part: Part = WHOLE, /) -> Tensor:
        """Return a weight, on the CPU, in the dtype it is stored in; it is only to be read.

        Raises:
            CheckpointError: there is none of that name, or it has another shape.
        """

    def unit(self, name: str, shape: MatrixShape, /) -> int:
        """Return how many inputs of a linear layer cannot be cut apart: those of a group.

        Raises:
            CheckpointError: its weight is malformed.
        """
        return 1

    def quantized(
        self, name: str, shape: MatrixShape, part: Part = WHOLE, /
    ) -> QuantizedMatrix | None:
        """Return the weight of a linear layer as it is quantised, in new memory.

        Args:
            shape: outputs and inputs.
            part: its columns begin at a multiple of :meth:`unit`, and end at one or at the last.

        Returns:
            ``None`` if it is not quantised, or missing.

        Raises:
            CheckpointError: it has another shape, or is malformed.
        """
        return None

    def blocks(
        self, name: str, shape: MatrixShape, part: Part = WHOLE, /
    ) -> QuantizedTensor | None:
        """Return a matrix of which rows can be dequantised one by one, or ``None``.

        Raises:
            CheckpointError: it has another shape.
        """
        return None

    def release(self) -> None:
        """Release the memory of weights that are no longer used; views stay valid."""

    def check_layers(self, num_layers: int, /) -> None:
        """Check that there are weights of so many layers, before any is taken.

        Raises:
            CheckpointError: there are those of more layers, or of fewer.
        """

    def check_all_taken(self, *, tied: bool) -> None:
        """Check that every weight was taken, or is known to be of no use.

        Args:
            tied: the head is the embedding.

        Raises:
            CheckpointError: the model would lack one.
        """


def open_weights(
    checkpoint: Checkpoint,
    *,
    allow_pickle: bool,
    dtype: torch.dtype = torch.float32,
    layout: Layout | None = None,
) -> StoredWeights:
    """Open the weights of a checkpoint; each is read when it is first used.

    Args:
        allow_pickle: also open weights in pickle form.
        dtype: what quantised weights of a GGUF file become where they are dequantised.
        layout: of the quantised matrices in safetensors.

    Raises:
        CheckpointError: they are missing, incomplete, in a form that may not be loaded, or of
            another model than the configuration describes.
        UnsupportedModel: they are quantised and in pickle form.
    """
    checkpoint.check_weights(allow_pickle=allow_pickle)
    if (checkpoint.folder / ADAPTER).exists():
        get_logger().warning(
            "adapter_not_applied", folder=str(checkpoint.folder), remedy="merge it"
        )
    files: Sequence[_File]
    if checkpoint.gguf is not None:
        files = [MappedGguf(checkpoint.gguf, checkpoint.config, dtype)]
    else:
        files = [SafetensorsFile(path) for path in checkpoint.weight_files]
        files = files or [PickleFile(path) for path in checkpoint.pickle_files]
    weights = StoredWeights(checkpoint, files, layout)
    check_quantized(checkpoint, weights.shapes)
    check_sizes(checkpoint, weights.shapes)
    return weights


class _File(Protocol):
    def __iter__(self) -> Iterator[str]: ...

    def shape(self, name: str) -> Shape: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def tensor(self, name: str, part: Part = WHOLE) -> Tensor: ...

    def release(self) -> None: ...


class StoredWeights:
    """Weights of a checkpoint, found by name with or without the prefix of the bare decoder."""

    def __init__(
        self, checkpoint: Checkpoint, files: Sequence[_File], layout: Layout | None = None
    ) -> None:
        self._checkpoint = checkpoint
        self._files = {name: file for file in files for name in file}
        self._modules = None if layout is None else _modules(checkpoint, layout, self._files)
        self._all = files
        self._taken: set[str] = set()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first matrix."""
        for name, file in self._files.items():
            if len(file.shape(name)) > 1 and not is_computed(name) and self._is_plain(file, name):
                return file.dtype(name)
        return torch.float32

    @property
    def is_quantized(self) -> bool:
        """Return whether any matrix is quantised."""
        return self._modules is not None or any(
            isinstance(file, MappedGguf) and file.is_quantized for file in self._all
        )

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each weight."""
        return {name: file.shape(name) for name, file in self._files.items()}

    def check_dtypes(self, tables: Collection[str] = ()) -> None:
        """Check that all weights are floating-point numbers.

        Args:
            tables: last parts of names of those that need not be.

        Raises:
            CheckpointError: one is not, and is no table that a model computes itself.
        """
        for name, file in self._files.items():
            if not is_computed(name) and name.rpartition(".")[2] not in tables:
                file.dtype(name)

    def has(self, name: str, /) -> bool:
        return self._found(name) in self._files or self._quantized_name(name) is not None

    def take(self, name: str, shape: Shape, part: Part = WHOLE, /) -> Tensor:
        found = self._found(name)
        if found not in self._files:
            raise CheckpointError(
                f"{self._checkpoint.place} lacks {name} among its weights; it was saved from "
                "another kind of model, or incompletely"
            )
        self._files[found].dtype(found)
        self._check_shape(found, shape)
        self._taken.add(found)
        return self._files[found].tensor(found, part)

    def unit(self, name: str, shape: MatrixShape, /) -> int:
        blocks = self.blocks(name, shape)
        if blocks is not None:
            return blocks.block_type.length
        found = self._quantized_name(name)
        return 1 if self._modules is None or found is None else self._modules.unit(found, shape)

    def quantized(
        self, name: str, shape: MatrixShape, part: Part = WHOLE, /
    ) -> QuantizedMatrix | None:
        blocks = self.blocks(name, shape, part)
        if blocks is not None:
            return self._sound(name, blocks.block_type.name, blocks.matrix())
        found = self._quantized_name(name)
        if self._modules is None or found is None:
            return None
        method = self._checkpoint.quantized_as or ""
        return self._sound(found, method, self._modules.matrix(found, shape, part))

    def _sound(self, name: str, kind: str, matrix: QuantizedMatrix) -> QuantizedMatrix:
        """Return a matrix if all of its scales are numbers."""
        if not matrix.is_finite:
            raise damaged(
                f"{name} in {self._checkpoint.place} ({kind}) has a scale or an offset that is not "
                "finite"
            )
        return matrix

    def blocks(
        self, name: str, shape: MatrixShape, part: Part = WHOLE, /
    ) -> QuantizedTensor | None:
        found = self._found(name)
        file = self._files.get(found)
        if not isinstance(file, MappedGguf) or not file.is_quantized_matrix(found):
            return None
        self._check_shape(found, shape)
        self._taken.add(found)
        return file.blocks(found, part)

    def _is_plain(self, file: _File, name: str) -> bool:
        """Return whether a tensor is of floating-point numbers, as far as that is not an error."""
        if self._modules is None or not isinstance(file, SafetensorsFile):
            return True
        return file.stored(name).is_floating_point()

    def _found(self, name: str) -> str:
        """Return the name that a weight has in the files, if there is one."""
        return name if name in self._files else _bare(name)

    def _quantized_name(self, name: str) -> str | None:
        """Return the name that a quantised matrix has in the files, or ``None``."""
        if self._modules is None:
            return None
        return next((each for each in (name, _bare(name)) if self._modules.has(each)), None)

    def _check_shape(self, name: str, shape: Shape) -> None:
        stored = self._files[name].shape(name)
        if stored != shape:
            raise CheckpointError(
                f"in {self._checkpoint.place}, {name} has another shape, {stored}, than the "
                f"{shape} that the configuration says; the two do not belong together"
            )

    def release(self) -> None:
        for file in self._all:
            file.release()

    def check_layers(self, num_layers: int, /) -> None:
        numbers = {number for name in self._files if (number := layer_number(name)) is not None}
        stored = max(numbers, default=-1) + 1
        if stored != num_layers:
            raise other_layers(self._checkpoint.place, num_layers, stored)

    def check_all_taken(self, *, tied: bool) -> None:
        taken = self._taken if self._modules is None else self._taken | self._modules.taken
        check_unused(
            self._files.keys() - taken,
            place=self._checkpoint.place,
            config=self._checkpoint.config,
            tied=tied,
        )


class RandomWeights(Weights):
    """Random weights of a seed, for measuring what a configuration costs."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self._dtype = dtype
        self._seed = seed

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def has(self, name: str, /) -> bool:
        return not name.startswith(("lm_head.", "output."))

    def take(self, name: str, shape: Shape, part: Part = WHOLE, /) -> Tensor:
        if len(shape) == 1:
            whole = torch.full(shape, float(name.endswith("weight")), dtype=self._dtype)
            return part.of(whole)
        # the same for a name, whatever else is taken: ranks take different parts
        generator = torch.Generator().manual_seed(self._seed ^ crc32(name.encode()))
        # a short run of noise, repeated: drawing every number of a large model takes minutes
        noise = torch.randn(min(prod(shape), 1 << 20), generator=generator) * 0.02
        noise = noise.to(self._dtype)
        whole = noise.repeat(-(-prod(shape) // len(noise)))[: prod(shape)].view(shape)
        some = part.of(whole)
        return whole if some.shape == whole.shape else some.clone()  # which lets go of the rest

    def release(self) -> None:
        """Do nothing: no memory is kept."""

    def check_layers(self, num_layers: int, /) -> None:
        """Do nothing: there are weights of any number of layers."""

    def check_all_taken(self, *, tied: bool) -> None:
        """Do nothing: a weight is made when it is taken."""


def _modules(
    checkpoint: Checkpoint, layout: Layout, files: Mapping[str, _File]
) -> QuantizedModules:
    safetensors = {name: file for name, file in files.items() if isinstance(file, SafetensorsFile)}
    if len(safetensors) < len(files):
        raise UnsupportedModel(
            f"{checkpoint.place} holds quantised weights in pickle form, and they are read from "
            "safetensors; convert them"
        )
    return QuantizedModules(layout, safetensors)


def _bare(name: str) -> str:
    """Return the name that a checkpoint of the decoder without its head has for a weight."""
    return name.partition(".")[2]
