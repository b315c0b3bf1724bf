"""Linear layers that are quantised when a checkpoint is loaded, and the decoder that has them.

Weights stay where they are stored until they are quantised, and codes in their file until a layer
is made of them. So there is never much more memory in use than what stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from paged_backends.checkpoint.folder import fingerprint
from paged_backends.checkpoint.json_file import damaged
from paged_backends.checkpoint.weights import RandomWeights
from paged_backends.quantization.disk_cache import DiskCache
from paged_backends.quantization.matrix import QuantizedMatrix, shape_of
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.decoder import Decoder, Head, Layer, Linear
from paged_backends.runners.native.linear_maker import (
    StoredLinear,
    converted_embedding,
    converted_head,
    converted_layer,
    stored_linears,
)
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.source import ModelSource
from paged_backends.runners.settings import NativeSettings
from paged_core.errors import SettingsError


@dataclass(frozen=True, slots=True)
class QuantizedLinears:
    """The quantised weights of linear layers; each is taken once."""

    weight_format: WeightFormat
    matrices: dict[StoredLinear, QuantizedMatrix]
    """Weights of a checkpoint that were not taken yet; weights that are generated have none here:
    each is quantised when it is taken, and cached nowhere."""
    release: Callable[[], None] = lambda: None
    """Release the memory of the file that they are mapped from; what is used is read again."""

    @classmethod
    def of(
        cls, source: ModelSource, assembly: Assembly, head: Head, weight_format: WeightFormat
    ) -> tuple[Iterator[Layer], Self]:
        """Return the layers one after the other, and the weights of their linear layers.

        Those of a checkpoint are cached on disk.

        Raises:
            CheckpointError: see :meth:`Assembly.check_all_taken`.
        """
        if isinstance(source.weights, RandomWeights):
            return assembly.layers(), cls(weight_format, {})
        layers = list(assembly.layers())  # views of the checkpoint: nothing is read yet
        assembly.check_all_taken()
        linears = list(stored_linears(head, layers))
        quantized = DiskCache().weights(
            fingerprint(source.checkpoint) + source.share.name,
            [linear.rows for linear in linears],
            weight_format,
            release=source.weights.release,
        )
        matrices = dict(zip(linears, quantized.matrices, strict=True))
        return _given_up(layers), cls(weight_format, matrices, quantized.release)

    def take(self, linear: StoredLinear) -> QuantizedMatrix:
        """Return the weight of a layer; its memory is free once the caller has let go of it."""
        if not self.matrices:
            return quantize([linear.rows], self.weight_format)[0]
        return self.matrices.pop(linear)


def _given_up(layers: list[Layer]) -> Iterator[Layer]:
    """Yield layers that are no longer kept here."""
    while layers:
        yield layers.pop(0)


# ---------------------------------------------------------------------- the decoder


def check_quantization(options: NativeSettings, source: ModelSource) -> None:
    """Check that the weights of a model can be quantised as ``options`` ask.

    Raises:
        SettingsError: they cannot: on this device, with these options, or because they are
            quantised already.
    """
    asked = f"runner.quantization: {options.quantization}"
    if source.device.type != "cpu":
        raise SettingsError(
            f"{asked} is computed on a CPU, and this is {source.device}; set device to cpu, "
            "runner.quantization to off, or runner to onnxruntime"
        )
    if options.compile:
        raise SettingsError(
            f"{asked} has operations of its own, which runner.compile cannot compile; leave one "
            "of them out"
        )
    source.check_not_quantized(options.quantization)


def quantized_decoder(source: ModelSource, ops: Ops, weight_format: WeightFormat) -> Decoder:
    """Return the decoder of a model, with quantised linear layers and head.

    The embedding stays as it is stored. The quantised weights of a checkpoint are cached on disk.

    Args:
        ops: make the operations.

    Raises:
        CheckpointError: see :class:`~paged_backends.runners.native.assembly.Assembly`; or a weight
            is not finite.
    """
    assembly = Assembly(source, ops, StoredLinear, group_size=weight_format.group_size)
    assembly.check_layers()
    embedding = assembly.embedding()
    head = assembly.head(embedding)
    layers, linears = QuantizedLinears.of(source, assembly, head, weight_format)

    def quantized(linear: StoredLinear) -> Linear:
        try:
            return ops.quantized(linears.take(linear), linear.bias_O)
        except ValueError as error:
            raise damaged(
                f"a weight of {source.checkpoint.place} {list(shape_of(linear.rows))} cannot be "
                "quantised: it holds NaN or an infinity"
            ) from error

    def plain(linear: StoredLinear) -> Linear:
        return ops.stacked([linear.weight.to(source.dtype)], linear.bias_O)

    made_head = converted_head(head, quantized)
    linears.release()
    made = []
    for layer in layers:
        made.append(converted_layer(layer, quantized))
        linears.release()
    return assembly.connected(converted_embedding(embedding, plain), made, made_head)
