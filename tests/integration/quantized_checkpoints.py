"""Checkpoints of tiny models as quantisation tools write them, from the formats' descriptions.

Numbers are quantised here in float64, element by element, with nothing of what reads them. Where
there is a package that writes a format, it does.

Shapes: O outputs, I inputs, G groups.
"""

# ruff: noqa: N803, N806, N815 - the shape of an array is the upper-case end of its name
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Array = NDArray[Any]
Tensors = dict[str, torch.Tensor]


@dataclass
class Codes:
    """A matrix in codes: a weight is ``(code - zero) * scale`` of its group."""

    codes_OI: Array
    scales_OG: Array
    zeros_OG: Array
    group_I: Array
    bits: int

    def weights(self) -> Array:
        """Return the weights in float64."""
        zeros, scales = self.zeros_OG[:, self.group_I], self.scales_OG[:, self.group_I]
        return (self.codes_OI - zeros) * scales.astype(np.float64)


@dataclass(kw_only=True)
class Method:
    """Way to quantise and write matrices."""

    bits: int = 4
    group_size: int = 32
    """-1: one group."""
    symmetric: bool = False
    act_order: bool = False
    random: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(0), repr=False
    )

    def quantized(self, weight_OI: Array) -> Codes:
        """Quantise a matrix, to the nearest."""
        inputs, largest = weight_OI.shape[1], 2**self.bits - 1
        size = inputs if self.group_size < 0 else self.group_size
        group_I = np.arange(inputs) // size
        if self.act_order:
            group_I = group_I[self.random.permutation(inputs)]
        codes_OI = np.zeros(weight_OI.shape, np.int64)
        scales, zeros = [], []
        for group in range(group_I.max() + 1):
            some = weight_OI[:, group_I == group]
            low, high = some.min(1).clip(max=0), some.max(1).clip(min=0)
            if self.symmetric:
                scale = np.float16(np.abs(some).max(1) / (largest / 2))
                zero = np.full(len(some), 2 ** (self.bits - 1))
            else:
                scale = np.float16((high - low) / largest)
                zero = np.rint(-low / scale).clip(0, largest).astype(np.int64)
            codes = np.rint(some / scale[:, None].astype(np.float64)) + zero[:, None]
            codes_OI[:, group_I == group] = codes.clip(0, largest)
            scales.append(scale)
            zeros.append(zero)
        return Codes(codes_OI, np.stack(scales, 1), np.stack(zeros, 1), group_I, self.bits)

    def tensors(self, codes: Codes) -> Tensors:
        """Return what is stored for a matrix."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Return ``quantization_config``."""
        raise NotImplementedError


def packed(codes: Array, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Return int32 that hold the codes along the last side, in some order, the first lowest."""
    count = 32 // bits
    elements = codes.reshape(*codes.shape[:-1], -1, count)
    whole = np.zeros(elements.shape[:-1], np.int64)
    for place, number in enumerate(order or range(count)):
        whole |= elements[..., number] << bits * place
    return torch.from_numpy(whole.astype(np.uint32).view(np.int32).copy())


@dataclass(kw_only=True)
class Gptq(Method):
    """As AutoGPTQ and GPTQModel write."""

    version: int = 1

    def tensors(self, codes: Codes) -> Tensors:
        zeros = packed(codes.zeros_OG.T, self.bits)
        if self.version == 1:  # less one in each, with what is borrowed
            zeros -= sum(1 << shift for shift in range(0, 32, self.bits))
        return {
            "qweight": packed(codes.codes_OI, self.bits).T.contiguous(),
            "qzeros": zeros,
            "scales": torch.from_numpy(codes.scales_OG.T.copy()),
            "g_idx": torch.from_numpy(codes.group_I.astype(np.int32)),
        }

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group_size,
            "desc_act": self.act_order,
            "sym": self.symmetric,
            "checkpoint_format": "gptq" if self.version == 1 else "gptq_v2",
            "damp_percent": 0.01,
        }


@dataclass(kw_only=True)
class Awq(Method):
    """As AutoAWQ writes its version ``gemm``."""

    ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

    def tensors(self, codes: Codes) -> Tensors:
        return {
            "qweight": packed(codes.codes_OI.T, 4, self.ORDER),
            "qzeros": packed(codes.zeros_OG.T, 4, self.ORDER),
            "scales": torch.from_numpy(codes.scales_OG.T.copy()),
        }

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": 4,
            "group_size": self.group_size,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": None,
        }


@dataclass(kw_only=True)
class CompressedTensors(Method):
    """As the package ``compressed-tensors`` compresses; one scale where ``per_tensor``.

    It has given up groups that are out of order, and its plain format only adds a scale.
    """

    format: str = "pack-quantized"
    per_tensor: bool = False

    def quantized(self, weight_OI: Array) -> Codes:
        found = super().quantized(weight_OI)
        if self.per_tensor:
            found.scales_OG[:] = found.scales_OG.max()
            codes = np.rint(weight_OI / float(found.scales_OG.max())) + found.zeros_OG
            found.codes_OI = codes.clip(0, 2**self.bits - 1).astype(np.int64)
        return found

    def tensors(self, codes: Codes) -> Tensors:
        middle = 2 ** (self.bits - 1)
        scales = torch.from_numpy(codes.scales_OG[:1, 0] if self.per_tensor else codes.scales_OG)
        zeros = torch.from_numpy((codes.zeros_OG - middle).astype(np.int8))
        if self.format != "pack-quantized":
            numbers = torch.from_numpy((codes.codes_OI - middle).astype(np.int8))
            plain = {"weight": numbers, "weight_scale": scales}
            return plain if self.symmetric else plain | {"weight_zero_point": zeros}
        if self.act_order:
            return {
                "weight_packed": packed(codes.codes_OI, self.bits),
                "weight_scale": scales,
                "weight_zero_point": packed(codes.zeros_OG.T, self.bits).T,
                "weight_g_idx": torch.from_numpy(codes.group_I.astype(np.int32)),
                "weight_shape": torch.tensor(codes.codes_OI.shape),
            }
        state = {
            "weight": torch.from_numpy(codes.weights()),
            "weight_scale": scales.double(),
            "weight_zero_point": zeros,
        }
        scheme = QuantizationScheme(targets=["Linear"], weights=self._arguments())
        done = PackedQuantizationCompressor.compress(state, scheme)
        return done | {"weight_scale": scales.half()}

    def _arguments(self) -> QuantizationArgs:
        strategy = "tensor" if self.per_tensor else "channel" if self.group_size < 0 else "group"
        return QuantizationArgs(
            num_bits=self.bits,
            type="int",
            symmetric=self.symmetric,
            strategy=strategy,
            group_size=self.group_size if strategy == "group" else None,
        )

    def config(self) -> dict[str, Any]:
        weights = json.loads(self._arguments().model_dump_json())
        if self.act_order:
            weights["actorder"] = "group"  # the package does not write it any more
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": weights,
                    "input_activations": None,
                    "output_activations": None,
                }
            },
        }


@dataclass(kw_only=True)
class Float8(Method):
    """As DeepSeek writes matrices: float8, with a scale for each square block."""

    block: int = 128

    def quantized(self, weight_OI: Array) -> Codes:
        scales_OI = np.zeros(weight_OI.shape, np.float32)
        for row in range(0, weight_OI.shape[0], self.block):
            for column in range(0, weight_OI.shape[1], self.block):
                block = np.s_[row : row + self.block, column : column + self.block]
                scales_OI[block] = np.abs(weight_OI[block]).max() / 448
        codes = torch.from_numpy(weight_OI / scales_OI).to(torch.float8_e4m3fn).double().numpy()
        group_I = np.arange(weight_OI.shape[1])
        return Codes(codes, scales_OI, np.zeros(scales_OI.shape), group_I, 8)

    def tensors(self, codes: Codes) -> Tensors:
        return {
            "weight": torch.from_numpy(codes.codes_OI).to(torch.float8_e4m3fn),
            "weight_scale_inv": torch.from_numpy(
                codes.scales_OG[:: self.block, :: self.block].copy()
            ),
        }

    def config(self) -> dict[str, Any]:
        return {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [self.block, self.block],
            "modules_to_not_convert": ["lm_head"],
        }


def write(
    model: Any,
    folder: Path,
    method: Method,
    *,
    plain: tuple[str, ...] = ("lm_head",),
    others: Mapping[str, Method] = MappingProxyType({}),
    change: Callable[[str, Tensors], Mapping[str, torch.Tensor]] = lambda name, tensors: tensors,
) -> Path:
    """Save a model with the matrices of its linear layers quantised; its weights become those.

    Args:
        plain: matrices with this in their names stay as they are.
        others: methods of matrices with this in their names.
        change: is given the name of a module and what is stored for it, and returns that.
    """
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or any(part in name for part in plain):
            continue
        chosen = next((each for part, each in others.items() if part in name), method)
        codes = chosen.quantized(module.weight.detach().double().numpy())
        tensors.pop(f"{name}.weight")
        for part, tensor in change(name, chosen.tensors(codes)).items():
            tensors[f"{name}.{part}"] = tensor.contiguous()
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(codes.weights()))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": method.config()}))
    return folder
