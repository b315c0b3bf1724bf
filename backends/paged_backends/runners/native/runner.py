"""Component ``native``: the most common model families, in our own decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.choice import choose_ops, compile_layers
from paged_backends.runners.native.decoder import Decoder, RunsLayers
from paged_backends.runners.native.fusion import fuse
from paged_backends.runners.native.linear_maker import SCALE_BYTES
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.quantized_linears import check_quantization, quantized_decoder
from paged_backends.runners.native.share import Share
from paged_backends.runners.native.source import DescribedRunner, ModelSource
from paged_backends.runners.settings import NativeSettings
from paged_core.engine.contexts import RunnerContext
from paged_core.interfaces.layer import ModelSize
from paged_core.log import get_logger

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

_log = get_logger()


class NativeRunner(DescribedRunner):
    """Runs a model of a folder or a GGUF file, without importing transformers."""

    def __init__(self, options: NativeSettings, context: RunnerContext) -> None:
        super().__init__(context)
        self._options = options
        self._decoder: Decoder
        self._kernels: Kernels | None = None
        self._quantized_products: str | None = None

    def load(self) -> None:
        """Read the configuration, then the weights; see the interface for what it raises."""
        settings = self._settings
        source = ModelSource.open(
            settings,
            self._options.weights,
            rank=self._context.rank,
            share=Share.of(self._context.communicator),
        )
        weight_format = self._options.weight_format
        if weight_format is not None:
            check_quantization(self._options, source)
        self._describe(source, _bytes_per_weight(source, weight_format))
        is_exact = settings.dtype == "float32"
        ops = choose_ops(self._options, source.dtype, source.device, is_exact=is_exact)
        with self._fitting(source.device):
            self._decoder = self._made(source, ops, weight_format)
        self._kernels = ops.kernels
        is_quantized = self._bytes_per_weight < source.dtype.itemsize
        if is_quantized:
            self._quantized_products = ops.quantized_products
        if self._quantized_products == "integer":
            _log.info(
                "activations_rounded",
                to="8 bits",
                reason="products with quantised weights are of integers",
                remedy="set runner.quantized_products: float to do without, more slowly",
            )
        fused = None
        if ops.kernels is not None and (self._quantized_products or not is_quantized):
            fused = fuse(source.config, self._decoder.layers, ops.kernels, source.share)
        if source.share.all_agree(fused is not None, source.device):
            self._decoder.fused = fused
        if isinstance(ops, RunsLayers):
            self._decoder.run = [ops.run(layer) for layer in self._decoder.layers]
        if self._options.compile:
            self._decoder.run = compile_layers(self._decoder.layers, source.device)
        self._log_loaded(source.checkpoint)

    def model_size(self) -> ModelSize:
        """Count the weights of all linear layers, and say how quantised ones are multiplied."""
        return replace(super().model_size(), quantized_products=self._quantized_products)

    def _made(self, source: ModelSource, ops: Ops, weight_format: WeightFormat | None) -> Decoder:
        if weight_format is not None:
            return quantized_decoder(source, ops, weight_format)
        assembly = Assembly(source, ops)
        decoder = assembly.decoder()
        self._bytes_per_weight = assembly.bytes_per_weight
        return decoder

    @property
    def kernels(self) -> Kernels | None:
        """The kernels for this CPU, if they are used."""
        return self._kernels

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return the output of the last layer, [T, hidden]."""
        return self._decoder.forward(tokens, positions, attend)

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size] in the dtype of the model, or in float32."""
        return self._decoder.logits(hidden)

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the best token [R] int64 of each row, and its logit [R]."""
        return self._decoder.best(hidden)

    def top_logits(self, hidden: Tensor, k: int, /) -> tuple[Tensor, Tensor]:
        """Return the highest logits [R, k] of each row in float32, and their tokens [R, k]."""
        return self._decoder.top(hidden, k)


def _bytes_per_weight(source: ModelSource, weight_format: WeightFormat | None) -> float:
    if weight_format is None:
        return source.dtype.itemsize
    return weight_format.bytes_per_weight(SCALE_BYTES)
