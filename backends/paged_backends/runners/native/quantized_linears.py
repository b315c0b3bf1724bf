"""The linear layers of a decoder, quantised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

from paged_backends.checkpoint.folder import fingerprint
from paged_backends.checkpoint.weights import RandomWeights
from paged_backends.quantization.disk_cache import DiskCache
from paged_backends.quantization.matrix import QuantizedMatrix, QuantizedWeights
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.decoder import Head, Layer
from paged_backends.runners.native.source import ModelSource
from paged_backends.runners.native.stored_linear import StoredLinear, stored_linears


@dataclass(frozen=True, slots=True)
class QuantizedLinears:
    """The quantised weights of linear layers; each is taken once."""

    matrices: dict[StoredLinear, QuantizedMatrix]
    """Those that were not taken yet."""
    release: Callable[[], None] = lambda: None
    """Release the memory of the file that they are mapped from; what is used is read again."""

    @classmethod
    def of(
        cls, source: ModelSource, head: Head, layers: Iterable[Layer], weight_format: WeightFormat
    ) -> Self:
        """Quantise all linear layers; those of a checkpoint are cached on disk."""
        linears, weights = list(stored_linears(head, layers)), source.weights
        matrices = [linear.rows for linear in linears]
        if isinstance(weights, RandomWeights):
            quantized = QuantizedWeights(quantize(matrices, weight_format))
        else:
            quantized = DiskCache().weights(
                fingerprint(source.checkpoint), matrices, weight_format, release=weights.release
            )
        return cls(dict(zip(linears, quantized.matrices, strict=True)), quantized.release)

    def take(self, linear: StoredLinear) -> QuantizedMatrix:
        """Return the weight of a layer; its memory is free once the caller has let go of it."""
        return self.matrices.pop(linear)


@dataclass(frozen=True, slots=True)
class GeneratedLinears:
    """Weights that are generated: each is quantised when it is taken, and cached nowhere."""

    weight_format: WeightFormat

    def take(self, linear: StoredLinear) -> QuantizedMatrix:
        """Return the weight of a layer."""
        (matrix,) = quantize([linear.rows], self.weight_format)
        return matrix

    def release(self) -> None:
        """Do nothing: there is no file."""
