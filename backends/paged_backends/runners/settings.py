"""Options of the runners; light, because every listing imports them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paged_backends.kernels.cpu import InstructionSetName, ProductsName
from paged_backends.quantization.weight_format import WeightFormat
from paged_core.plugins.component import ComponentSettings


class TransformersSettings(ComponentSettings):
    """Any decoder-only model of the transformers library, through its attention interface."""

    name: Literal["transformers"] = "transformers"


class QuantizingSettings(ComponentSettings):
    """Options of runners that can quantise weights when they load them, or make them up."""

    weights: Literal["checkpoint", "random"] = Field(
        default="checkpoint",
        description="`random`: generated from the seed, to benchmark with a config.json alone.",
    )
    quantization: Literal["off", "int8", "int4"] = Field(
        default="off",
        description="int8, int4: bits of the weights of linear layers, quantised at load",
    )
    group_size: Literal[32, 64, 128] | None = Field(
        default=None,
        description="inputs of a linear layer that share a scale when quantised; default: 128 with "
        "int8, 32 with int4",
    )

    @property
    def weight_format(self) -> WeightFormat | None:
        """Format that the weights get; ``None``: they stay as they are."""
        if self.quantization == "off":
            return None
        if self.quantization == "int8":
            return WeightFormat(8, self.group_size or 128)
        return WeightFormat(4, self.group_size or 32)


class NativeSettings(QuantizingSettings):
    """The most common model families, in our own decoder."""

    name: Literal["native"] = "native"
    kernels: Literal["auto", InstructionSetName, "triton", "off"] = Field(
        default="auto",
        description="auto: triton on a GPU, on a CPU the best instruction set; off: plain PyTorch",
    )
    quantized_products: Literal["auto", "float", ProductsName] = Field(
        default="auto",
        description="on a CPU, activations times quantised weights: widened, codes become "
        "bfloat16, needs AMX; integer, activations are rounded to 8 bits; float, neither; auto: "
        "float with dtype: float32, else widened where there is AMX",
    )
    compile: bool = Field(
        default=False,
        description="torch.compile PyTorch's operations, in place of our own kernels",
    )


class OnnxRuntimeSettings(QuantizingSettings):
    """The families of runner ``native``, with ONNX Runtime between the attention layers."""

    name: Literal["onnxruntime"] = "onnxruntime"
