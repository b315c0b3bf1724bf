"""How a checkpoint's quantised matrices are stored, by its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.quantized.awq import Awq
from paged_backends.checkpoint.quantized.compressed_tensors import CompressedTensors
from paged_backends.checkpoint.quantized.gptq import Gptq
from paged_backends.checkpoint.quantized.stored_module import StoredModule
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape
from paged_core.errors import UnsupportedModel
from paged_core.field_rules import shown


class Layout(Protocol):
    """Finds the matrices of one method, and brings them to our own form."""

    def has(self, module: StoredModule) -> bool:
        """Whether the matrix of a module is quantised."""

    def matrix(self, module: StoredModule, shape: Shape) -> QuantizedMatrix:
        """Return a matrix.

        Args:
            shape: outputs and inputs.

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
            f"{checkpoint.place} is quantised by {shown(method)}, and what runner native reads is "
            f"{', '.join(_METHODS)}; take another quantisation of the model, or one that runner "
            "transformers serves with the package of its method"
        )
    return _METHODS[method](ConfigFields(checkpoint).part("quantization_config", values))


_METHODS: Mapping[str, Callable[[ConfigFields], Layout]] = {
    "gptq": Gptq.described,
    "awq": Awq.described,
    "compressed-tensors": CompressedTensors.described,
}
"""By their names in ``quant_method``."""
