"""The layout of a checkpoint's quantised matrices, by its configuration, and the linear layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.quantized.formats import Awq, CompressedTensors, GptqModules
from paged_backends.checkpoint.quantized.stored_module import StoredModule
from paged_backends.checkpoint.tensor_files import WHOLE, Part, SafetensorsFile
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape
from paged_core.errors import UnsupportedModel
from paged_core.field_rules import shown


class Layout(Protocol):
    """Finds the matrices of one method, and brings them to our own form."""

    def has(self, module: StoredModule) -> bool:
        """Return whether the matrix of a module is quantised."""

    def unit(self, module: StoredModule, shape: Shape) -> int:
        """Return how many inputs of a matrix cannot be cut apart."""

    def matrix(self, module: StoredModule, shape: Shape, part: Part) -> QuantizedMatrix:
        """Return a part of a matrix.

        Args:
            shape: outputs and inputs of the whole.
            part: its columns begin at a multiple of :meth:`unit`, and end at one or at the last.

        Raises:
            CheckpointError: a tensor is missing or malformed.
        """


def layout_of(checkpoint: Checkpoint) -> Layout | None:
    """Return the layout of a checkpoint's quantised matrices, or ``None`` if it says of none.

    Raises:
        UnsupportedModel: they are of a method that is not read.
        CheckpointError: the configuration is wrong.
    """
    values, method = checkpoint.config.get("quantization_config"), checkpoint.quantized_as
    if checkpoint.gguf is not None or method is None:
        return None
    if method not in _METHODS:
        raise UnsupportedModel(
            f"{checkpoint.place} is quantised by {shown(method)}, and what runner native reads "
            f"(quant_method in quantization_config) is "
            f"{', '.join(_METHODS)}; take another quantisation of the model, or one that runner "
            "transformers serves with the package of its method"
        )
    return _METHODS[method](ConfigFields(checkpoint).part("quantization_config", values))


_METHODS: Mapping[str, Callable[[ConfigFields], Layout]] = {
    "gptq": GptqModules.described,
    "awq": Awq.described,
    "compressed-tensors": CompressedTensors.described,
}
"""By their names in ``quant_method``."""


_WEIGHT = ".weight"


class QuantizedModules:
    """Matrices by the names that they would have if they were plain.

    Args:
        files: the file of each tensor, by its name.
    """

    def __init__(self, layout: Layout, files: Mapping[str, SafetensorsFile]) -> None:
        self._layout = layout
        self._files = files
        self.taken: set[str] = set()
        """Names of tensors that were read."""

    def has(self, name: str) -> bool:
        """Return whether a weight is quantised."""
        return name.endswith(_WEIGHT) and self._layout.has(self._module(name))

    def unit(self, name: str, shape: Shape) -> int:
        """Return how many inputs of a weight that is quantised cannot be cut apart."""
        return self._layout.unit(self._module(name), shape)

    def matrix(self, name: str, shape: Shape, part: Part = WHOLE) -> QuantizedMatrix:
        """Return a weight that is quantised; raises :class:`CheckpointError` if it is malformed."""
        module = self._module(name)
        matrix = self._layout.matrix(module, shape, part)
        module.skip_equal("bias", 0)  # old tools wrote one for every layer
        self.taken |= module.taken
        return matrix

    def _module(self, name: str) -> StoredModule:
        return StoredModule(name.removesuffix(_WEIGHT), self._files)
