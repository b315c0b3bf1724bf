"""The linear layers of a checkpoint whose matrices are quantised."""

from __future__ import annotations

from collections.abc import Mapping

from paged_backends.checkpoint.quantized.layout import Layout
from paged_backends.checkpoint.quantized.stored_module import StoredModule
from paged_backends.checkpoint.safetensors_file import SafetensorsFile
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape

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
        """Whether a weight is quantised."""
        return name.endswith(_WEIGHT) and self._layout.has(self._module(name))

    def matrix(self, name: str, shape: Shape) -> QuantizedMatrix:
        """Return a weight that is quantised; raises :class:`CheckpointError` if it is malformed."""
        module = self._module(name)
        matrix = self._layout.matrix(module, shape)
        module.skip_zeros("bias")  # old tools wrote one for every layer
        self.taken |= module.taken
        return matrix

    def _module(self, name: str) -> StoredModule:
        return StoredModule(name.removesuffix(_WEIGHT), self._files)
