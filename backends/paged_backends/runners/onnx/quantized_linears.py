"""The quantised weights of a decoder's linear layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.weights import Weights
from paged_backends.quantization.disk_cache import DiskCache
from paged_backends.quantization.fingerprint import fingerprint
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.decoder import Head, Layer
from paged_backends.runners.onnx.recorded_ops import RecordedLinear
from paged_backends.runners.onnx.segments import recorded


class CachedLinears:
    """Those of a checkpoint, all quantised at once, or found in the disk cache."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Weights,
        head: Head,
        layers: Sequence[Layer],
        weight_format: WeightFormat,
    ) -> None:
        linears = list(_linears(head, layers))
        quantized = DiskCache().weights(
            fingerprint(checkpoint),
            [linear.rows for linear in linears],
            weight_format,
            release=weights.release,
        )
        self._matrices = dict(zip(linears, quantized.matrices, strict=True))
        self.release = quantized.release

    def __call__(self, linear: RecordedLinear, /) -> QuantizedMatrix:
        """Return the weight of one linear layer."""
        return self._matrices[linear]


class RandomLinears:
    """Those of a model with random weights, each quantised when it is asked for."""

    def __init__(self, weight_format: WeightFormat) -> None:
        self._weight_format = weight_format

    def __call__(self, linear: RecordedLinear, /) -> QuantizedMatrix:
        """Return the weight of one linear layer."""
        return quantize([linear.rows], self._weight_format)[0]

    def release(self) -> None:
        """Do nothing: none is kept."""


def _linears(head: Head, layers: Sequence[Layer]) -> Iterator[RecordedLinear]:
    projects = [] if head.project is None else [head.project]
    for linear in (*projects, head.output):
        yield recorded(linear, RecordedLinear)
    for layer in layers:
        attention, mlp = layer.attention, layer.mlp
        for linear in (attention.query_key_value, attention.output, mlp.up, mlp.down):
            yield recorded(linear, RecordedLinear)
