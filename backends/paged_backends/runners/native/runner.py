"""Component ``native``: the most common model families, in our own decoder.

By its options and its device it computes with our own kernels, with plain PyTorch, or with layers
whose operations ``torch.compile`` fuses.
"""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paged_backends.kernels.build import CannotCompile
from paged_backends.kernels.cpu.availability import unavailable_reason
from paged_backends.kernels.cpu.compiler import NoSuchInstructions, find_compiler
from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.kernels.triton.availability import INTERPRETER, is_interpreted
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.assembly import Assembly
from paged_backends.runners.native.cpu_layers import KernelOps, fits, fuse
from paged_backends.runners.native.decoder import Decoder, Layer, Rotaries, RunsLayers
from paged_backends.runners.native.linear_maker import SCALE_BYTES
from paged_backends.runners.native.ops import Linear, Ops
from paged_backends.runners.native.quantized_linears import check_quantization, quantized_decoder
from paged_backends.runners.native.share import Share, SummedLinear
from paged_backends.runners.native.source import DescribedRunner, ModelSource
from paged_backends.runners.settings import NativeSettings
from paged_core.engine.contexts import RunnerContext
from paged_core.errors import SettingsError
from paged_core.interfaces.layer import ModelSize
from paged_core.log import get_logger

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend

log = get_logger()


def choose_ops(options: NativeSettings, dtype: torch.dtype, device: torch.device) -> Ops:
    """Return operations over the kernels for ``device``, or over PyTorch if they are missing.

    Raises:
        SettingsError: the options ask for what cannot be had here.
    """
    ops = _ops(options, dtype, device)
    wanted, found = options.quantized_products, ops.quantized_products
    if wanted not in ("auto", found):
        needed = "bfloat16 and AMX" if wanted == "widened" else "our kernels for CPUs"
        raise SettingsError(
            f"runner.quantized_products: {wanted} needs {needed}; here, with {dtype} on {device}, "
            f"products with quantised weights are {found or 'of floats'}; set it to auto"
        )
    return ops


def _ops(options: NativeSettings, dtype: torch.dtype, device: torch.device) -> Ops:
    chosen = options.kernels
    if options.compile:
        if chosen not in ("auto", "off"):
            raise SettingsError(
                "runner.compile compiles PyTorch's own operations, but runner.kernels asks for "
                f"{chosen}; leave one of them out"
            )
        return Ops(computes_quantized=False)
    if chosen == "off":
        return Ops(computes_quantized=device.type == "cpu")
    if chosen == "triton" or device.type == "cuda":
        return _triton_ops(device)
    if not fits(dtype, device):
        return Ops(computes_quantized=device.type == "cpu")
    reason = unavailable_reason()
    if reason is None:
        try:
            return KernelOps(_kernels(options, dtype))
        except NoSuchInstructions as error:
            raise SettingsError(f"runner.kernels: {error}") from error
        except CannotCompile as error:
            reason = str(error)
    return _plain(reason, computes_quantized=True)


def _kernels(options: NativeSettings, dtype: torch.dtype) -> Kernels:
    if dtype is not torch.bfloat16 or options.quantized_products == "integer":
        return Kernels.load(options.kernels, quantized_products="integer")
    return Kernels.load(options.kernels)


def _triton_ops(device: torch.device) -> Ops:
    if find_spec("triton") is None:
        reason = "triton is not installed: pip install 'paged-core[gpu]'"
        return _plain(reason, computes_quantized=device.type == "cpu")
    if device.type != "cuda" and not is_interpreted():
        raise SettingsError(
            f"runner.kernels: triton needs device: cuda, and this is {device}; in tests, "
            f"{INTERPRETER}=1 in the environment executes the kernels on a CPU"
        )
    from paged_backends.runners.native.triton_ops import TritonOps

    return TritonOps()


def _plain(reason: str, *, computes_quantized: bool) -> Ops:
    log.warning("kernels_missing", reason=reason, instead="plain PyTorch, more slowly")
    return Ops(computes_quantized=computes_quantized)


# ---------------------------------------------------------------------- compiled layers


def compile_layers(layers: Sequence[Layer], device: torch.device) -> list[CompiledLayer]:
    """Return what computes these layers.

    Raises:
        SettingsError: ``torch.compile`` lacks what it needs here.
    """
    reason = _compile_problem(device)
    if reason is not None:
        raise SettingsError(f"runner.compile: {reason}; leave it out")
    return [CompiledLayer(_with_sums_as_they_are(layer)) for layer in layers]


def _with_sums_as_they_are(layer: Layer) -> Layer:
    """Return a layer whose sums over the ranks are called, not traced: a communicator has state."""

    disable: Any = torch.compiler.disable  # untyped

    def called(linear: Linear) -> Linear:
        if not isinstance(linear, SummedLinear):
            return linear
        return replace(linear, all_reduce=disable(linear.all_reduce))

    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=replace(attention, output=called(attention.output)),
        mlp=replace(mlp, down=called(mlp.down)),
    )


def _compile_problem(device: torch.device) -> str | None:
    """Say why layers cannot be compiled for ``device``, or return ``None``."""
    if device.type == "cuda":
        missing = find_spec("triton") is None
        return "triton is not installed: pip install 'paged-core[gpu]'" if missing else None
    compiler = find_compiler()
    return str(compiler) if isinstance(compiler, CannotCompile) else None


class CompiledLayer:
    """Computes a layer. Its code is compiled when it is first called: once for all layers of the
    same shapes, again for the second number of tokens, and then for any."""

    def __init__(self, layer: Layer) -> None:
        self._attention = layer.attention
        self._begin = torch.compile(layer.begin)
        self._finish = torch.compile(layer.finish)

    def __call__(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> Tensor:
        """See :class:`~paged_backends.runners.native.decoder.RunsLayer`."""
        query, key, value = self._begin(hidden_TE, rotaries[self._attention.config.rope])
        return self._finish(attend(self._attention.index, query, key, value), hidden_TE)


# ---------------------------------------------------------------------- the runner


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
        ops = choose_ops(self._options, source.dtype, source.device)
        with self._fitting(source.device):
            self._decoder = self._made(source, ops, weight_format)
        self._kernels = ops.kernels
        if self._bytes_per_weight < source.dtype.itemsize:
            self._quantized_products = ops.quantized_products
        fused = None
        if ops.kernels is not None:
            fused = fuse(source.config, self._decoder.layers, ops.kernels, source.share)
        if source.share.all_agree(fused is not None, source.device):
            self._decoder.fused = fused
        if isinstance(ops, RunsLayers):
            self._decoder.run = [ops.run(layer) for layer in self._decoder.layers]
        if self._options.compile:
            self._decoder.run = compile_layers(self._decoder.layers, source.device)
        self._log_loaded(source.checkpoint.model_type)

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
