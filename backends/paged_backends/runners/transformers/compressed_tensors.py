"""Dequantises compressed-tensors while transformers loads them, each matrix by its own scheme.

The library's own operation takes every linear layer for one of the first of the ``config_groups``,
multiplies in the dtype of the stored scales, and drops tensors that a scheme does not use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor  # type: ignore[import-untyped]
from compressed_tensors.compressors.format import (  # type: ignore[import-untyped]
    infer_module_format,
)
from compressed_tensors.quantization import (  # type: ignore[import-untyped]
    QuantizationScheme,
)
from torch import Tensor, nn
from transformers.integrations.compressed_tensors import CompressedTensorsDequantize
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

from paged_backends.checkpoint.json_file import one_line
from paged_backends.checkpoint.quantized.formats import target_of
from paged_core.errors import CheckpointError

_METHOD = "compressed-tensors"


@contextmanager
def dequantized_by_scheme() -> Iterator[None]:
    """Have the library load with the operation here.

    Raises:
        CheckpointError: a matrix cannot be dequantised; the library would only log why.
    """
    problems: list[Exception] = []

    class Dequantize(_Dequantize):
        def convert(self, *args: Any, **options: Any) -> dict[str, Tensor]:
            if problems:
                raise problems[0]
            try:
                return super().convert(*args, **options)
            except CheckpointError as error:
                problems.append(error)
                raise
            except Exception as error:  # what the package says of a matrix
                name = options.get("full_layer_name")
                problems.append(_contradiction(f"{name} cannot be dequantised ({one_line(error)})"))
                raise

    class Quantizer(CompressedTensorsHfQuantizer):  # type: ignore[misc]
        def get_load_operations(self) -> dict[str, type]:
            return {"dequantize": Dequantize}

    AUTO_QUANTIZER_MAPPING[_METHOD] = Quantizer
    try:
        yield
    except Exception as error:
        if problems:
            raise problems[0] from error
        raise
    finally:
        AUTO_QUANTIZER_MAPPING[_METHOD] = CompressedTensorsHfQuantizer


class _Dequantize(CompressedTensorsDequantize):  # type: ignore[misc]
    """Dequantises one matrix, or one of each expert of a layer."""

    def convert(
        self, input_dict: dict[str, Any], *, full_layer_name: str, model: Any, **_: Any
    ) -> dict[str, Tensor]:
        """Return matrices by the names of what held their codes."""
        weight = model.get_parameter(full_layer_name)
        found: dict[str, Tensor] = {}
        for stem, parts in _by_module(input_dict).items():
            held = "weight_packed" if "weight_packed" in parts else "weight"
            if "*" not in stem:
                name = full_layer_name.removesuffix(".weight")
                tensors = {part: _only(tensor) for part, tensor in parts.items()}
                found[full_layer_name] = self._weight(name, tensors, weight.shape).to(weight.dtype)
                continue
            if len({len(each) for each in parts.values()}) > 1:
                raise CheckpointError(f"of {stem}, some experts lack one of {', '.join(parts)}")
            prefix = _prefix(full_layer_name, stem)
            experts = (
                self._weight(prefix + stem.replace("*", str(number)), tensors)
                for number, tensors in enumerate(
                    dict(zip(parts, each, strict=True))
                    for each in zip(*parts.values(), strict=True)
                )
            )
            found[f"{stem}.{held}"] = torch.stack([each.to(weight.dtype) for each in experts])
        return found

    def _weight(
        self,
        name: str,
        tensors: Mapping[str, Tensor],
        shape: torch.Size | None = None,
    ) -> Tensor:
        if set(tensors) == {"weight"} and tensors["weight"].dtype in _FLOATS:
            return tensors["weight"]
        config = self.hf_quantizer.compressor.quantization_config
        scheme = _scheme_of(name, config)
        kind = scheme.format or config.format
        if kind in (None, "dense", "mixed-precision"):
            kind = infer_module_format(nn.Linear, scheme)
        compressor = BaseCompressor.get_value_from_registry(str(getattr(kind, "value", kind)))
        _check(name, tensors, scheme, compressor.compression_param_names(scheme), shape)
        exact = {
            part: tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
            for part, tensor in tensors.items()
        }
        if "weight_packed" in exact and "weight_shape" not in exact:
            rows, columns = exact["weight_packed"].shape
            whole = shape or (rows, columns * 32 // scheme.weights.num_bits)
            exact["weight_shape"] = torch.tensor(whole)
        weight: Tensor = compressor.decompress(exact, scheme)["weight"]
        return weight


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_ZEROS = (0, 0x88888888 - (1 << 32), 0x80808080 - (1 << 32))
"""Zero points that change nothing, alone or packed."""


def _by_module(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return tensors by the name of their module, or of one of each expert, and of their part."""
    found: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        found.setdefault(stem, {})[part] = tensor
    return found


def _only(tensors: Any) -> Tensor:
    found: Tensor = tensors[0] if isinstance(tensors, list) else tensors
    return found


def _prefix(name: str, stem: str) -> str:
    """Return what comes before the name of an expert's layer, in that of the whole weight."""
    begin = name.find(stem.partition("*")[0])
    return name[:begin] if begin >= 0 else re.match(r"(.*?\.\d+\.)?", name)[0]  # type: ignore[index]


def _scheme_of(name: str, config: Any) -> QuantizationScheme:
    schemes = {target: each for each in config.config_groups.values() for target in each.targets}
    found: QuantizationScheme = schemes[target_of(name, schemes, config.ignore or ())]
    return found


def _check(
    name: str,
    tensors: Mapping[str, Tensor],
    scheme: QuantizationScheme,
    used: Sequence[str],
    shape: Sequence[int] | None,
) -> None:
    """Check that tensors are those of a scheme, with its shapes."""
    for part, tensor in tensors.items():
        unset = part == "weight_zero_point" and any(bool((tensor == each).all()) for each in _ZEROS)
        if part not in used and not unset:
            raise _contradiction(f"{name}.{part} is not used by the scheme of its config_groups")
    lacking = [part for part in used if part.startswith("weight") and part not in tensors]
    if set(lacking) - {"weight_shape"}:
        raise _contradiction(f"{name} is quantised, and lacks {lacking[0]}")
    allowed: dict[str, tuple[torch.dtype, ...]] = {"weight": (scheme.weights.pytorch_dtype(),)}
    if scheme.weights.type == "int":
        allowed |= {"weight_scale": _FLOATS, "weight_packed": (torch.int32,)}
    for part in allowed.keys() & tensors.keys():
        if tensors[part].dtype not in allowed[part]:
            raise _contradiction(
                f"{name}.{part} is stored as {tensors[part].dtype}, and its scheme needs "
                f"{' or '.join(map(str, allowed[part]))}"
            )
    if "weight_shape" in tensors:
        stored = tensors["weight_shape"].tolist()
        if shape is not None and stored != list(shape):
            raise _contradiction(
                f"{name}.weight_shape is {stored}, and {list(shape)} is configured"
            )
        shape = stored
    if shape is None or scheme.weights.strategy not in ("group", "channel"):
        return
    rows, columns = shape
    size = scheme.weights.group_size if scheme.weights.strategy == "group" else columns
    needed = {
        "weight_scale": (rows, -(-columns // size)),
        "weight_packed": (rows, -(-columns * scheme.weights.num_bits // 32)),
    }
    for part in needed.keys() & tensors.keys() & set(used):
        if tuple(tensors[part].shape) != needed[part] and "weight_global_scale" not in used:
            raise _contradiction(
                f"{name}.{part} has the shape {tuple(tensors[part].shape)}, and its scheme needs "
                f"{needed[part]}"
            )


def _contradiction(problem: str) -> CheckpointError:
    return CheckpointError(f"{problem}; the configuration and the weights do not belong together")
