"""The linear layers of a decoder, quantised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paged_backends.checkpoint.weights import RandomWeights
from paged_backends.quantization.disk_cache import DiskCache
from paged_backends.quantization.fingerprint import fingerprint
from paged_backends.quantization.matrix import QuantizedMatrix, QuantizedWeights
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.decoder import Head, Layer
from paged_backends.runners.native.source import ModelSource
from paged_backends.runners.onnx.recorded_ops import RecordedLinear, recorded


class QuantizedLinears:
    """The quantised weights of all linear layers; those of a checkpoint are cached on disk."""

    def __init__(
        self,
        source: ModelSource,
        head: Head,
        layers: Iterable[Layer],
        weight_format: WeightFormat,
    ) -> None:
        linears = list(_linears(head, layers))
        weights = _quantized(source, linears, weight_format)
        self._matrices = dict(zip(linears, weights.matrices, strict=True))
        self.release = weights.release

    def __getitem__(self, linear: RecordedLinear) -> QuantizedMatrix:
        return self._matrices[linear]


def _linears(head: Head, layers: Iterable[Layer]) -> Iterator[RecordedLinear]:
    projects = [] if head.project is None else [head.project]
    for linear in (*projects, head.output):
        yield recorded(linear, RecordedLinear)
    for layer in layers:
        attention, mlp = layer.attention, layer.mlp
        for linear in (attention.query_key_value, attention.output, mlp.up, mlp.down):
            yield recorded(linear, RecordedLinear)


def _quantized(
    source: ModelSource, linears: Sequence[RecordedLinear], weight_format: WeightFormat
) -> QuantizedWeights:
    matrices, weights = [linear.rows for linear in linears], source.weights
    if isinstance(weights, RandomWeights):
        return QuantizedWeights(quantize(matrices, weight_format))
    return DiskCache().weights(
        fingerprint(source.checkpoint), matrices, weight_format, release=weights.release
    )
