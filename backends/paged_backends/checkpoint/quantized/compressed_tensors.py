"""Matrices as the library compressed-tensors stores them, for llm-compressor and vLLM.

``pack-quantized``: an element of ``weight_packed``, int32 [outputs, inputs / n], holds n codes of
one output, the first in its lowest bits; one of ``weight_zero_point`` [outputs / n, groups], the
zeros of n outputs. ``int-quantized`` and ``naive-quantized``: ``weight`` is int8, a code less its
middle, and so is ``weight_zero_point`` [outputs, groups]. ``weight_scale`` is [outputs, groups].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.quantized.bit_fields import in_bytes, unpacked_rows
from paged_backends.checkpoint.quantized.packed_codes import PackedCodes
from paged_backends.checkpoint.quantized.stored_module import StoredModule
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape
from paged_core.log import get_logger

_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_PACKED, _PLAIN, _SCALES = "weight_packed", "weight", "weight_scale"
_ZEROS, _ORDER = "weight_zero_point", "weight_g_idx"

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Scheme:
    """How some of the matrices are stored."""

    bits: Literal[4, 8]
    group_size: int | None
    """``None``: one group for all inputs."""
    per_tensor: bool
    """One scale for the whole matrix."""
    symmetric: bool
    out_of_order: bool
    """Inputs of a group are not one after another."""

    @classmethod
    def described(cls, fields: ConfigFields) -> Scheme:
        """Read ``weights`` of one of the ``config_groups``."""
        fields.choice("type", "int", ("int",))
        strategy = fields.choice("strategy", "tensor", ("tensor", "channel", "group"))
        orders = ("none", "weight", "static", "group", "dynamic")
        out_of_order = fields.choice("actorder", "none", orders) in ("group", "dynamic")
        if out_of_order:
            _log.info("groups_out_of_order", consequence="int8 in groups of 32")
        return cls(
            4 if fields.one_of("num_bits", 4, 8) == 4 else 8,
            fields.integer("group_size") if strategy == "group" else None,
            strategy == "tensor",
            fields.flag("symmetric", True),
            out_of_order,
        )

    def size(self, inputs: int) -> int:
        """Return the inputs of a group."""
        return min(self.group_size or inputs, inputs)

    def scales_shape(self, shape: Shape) -> tuple[int, ...]:
        """Return the shape of a matrix's scales."""
        outputs, inputs = shape
        return (1,) if self.per_tensor else (outputs, -(-inputs // self.size(inputs)))

    def packed_shape(self, shape: Shape) -> tuple[int, int]:
        """Return the shape of a matrix's codes, if they are packed."""
        return shape[0], -(-shape[1] * self.bits // 32)

    def fits(self, module: StoredModule, shape: Shape) -> bool:
        """Whether a module's tensors have the shapes that this scheme says."""
        packed = not module.has(_PACKED) or module.shape(_PACKED) == self.packed_shape(shape)
        scaled = module.has(_SCALES) and module.shape(_SCALES) == self.scales_shape(shape)
        return packed and scaled


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """The format of one checkpoint."""

    schemes: tuple[Scheme, ...]

    @classmethod
    def described(cls, fields: ConfigFields) -> CompressedTensors:
        """Read ``quantization_config``."""
        fields.choice("format", "pack-quantized", (*_FORMATS, "mixed-precision"))
        for name in ("transform_config", "kv_cache_scheme"):
            if fields.any(name):
                raise fields.lacking(name, "empty")
        sparsity = fields.mapping("sparsity_config") or {}
        fields.part("sparsity_config", sparsity).choice("format", "dense", ("dense",))
        groups = fields.mapping("config_groups")
        if not groups:
            raise fields.wrong("config_groups", "an object that is not empty")
        return cls(tuple(_scheme(fields.part("config_groups", each)) for each in groups.values()))

    def has(self, module: StoredModule) -> bool:
        """Whether the matrix of a module is quantised."""
        return module.has(_PACKED) or module.has(_SCALES)

    def matrix(self, module: StoredModule, shape: Shape) -> QuantizedMatrix:
        """Return a matrix; raises :class:`CheckpointError` if it is malformed."""
        outputs, inputs = shape
        fitting = [scheme for scheme in self.schemes if scheme.fits(module, shape)]
        scheme = (fitting or self.schemes)[0]
        size = scheme.size(inputs)
        groups = -(-inputs // size)
        packed = module.has(_PACKED)
        scales = module.numbers(_SCALES, scheme.scales_shape(shape))
        if module.has("weight_shape"):
            _check_shape(module, shape)
        return PackedCodes(
            bits=scheme.bits if packed else 8,
            shape=shape,
            bytes_OB=in_bytes(module.integers(_PACKED, scheme.packed_shape(shape)))
            if packed
            else _from_middle(module.integers(_PLAIN, shape, torch.int8)),
            scales_OG=scales.expand(outputs, groups),
            zeros_OG=_zeros(module, scheme, scales.expand(outputs, groups).shape),
            group_size=size,
            groups_I=_order(module, scheme, inputs, groups),
        ).matrix()


def _scheme(fields: ConfigFields) -> Scheme:
    """Read one of the ``config_groups``."""
    weights = fields.mapping("weights")
    if weights is None:
        raise fields.wrong("weights", "an object")
    fields.choice("format", "pack-quantized", _FORMATS)
    activations = fields.mapping("input_activations")
    if activations is not None:
        if fields.part("input_activations", activations).flag("dynamic", False) is False:
            raise fields.lacking("input_activations", "null, or dynamic,")
        _log.info("activations_not_quantized", reason="only weights are quantised")
    return Scheme.described(fields.part("weights", weights))


def _zeros(module: StoredModule, scheme: Scheme, shape: tuple[int, ...]) -> Tensor | None:
    """Return codes [O, G], or ``None`` if all are in the middle."""
    outputs, groups = shape
    if scheme.symmetric:
        module.skip(_ZEROS)
        return None
    if not module.has(_PACKED) or module.dtype(_ZEROS) == torch.int8:
        stored = (1,) if scheme.per_tensor else (outputs, groups)
        zeros = _from_middle(module.integers(_ZEROS, stored, torch.int8))
        if module.has(_PACKED) and scheme.bits == 4:
            zeros = zeros - (128 - 8)
        return zeros.expand(outputs, groups)
    packed = module.integers(_ZEROS, (-(-outputs * scheme.bits // 32), groups))
    return unpacked_rows(packed.T, scheme.bits)[:, :outputs].T


def _from_middle(numbers: Tensor) -> Tensor:
    """Return int8 as codes of 8 bits."""
    return numbers.view(torch.uint8) + 128  # modulo 256, as two's complement


def _check_shape(module: StoredModule, shape: Shape) -> None:
    stored = module.integers("weight_shape", (2,), torch.int64, torch.int32)
    if tuple(stored.tolist()) != shape:
        raise module.wrong("weight_shape", f"is {stored.tolist()}, and {list(shape)} is configured")


def _order(module: StoredModule, scheme: Scheme, inputs: int, groups: int) -> Tensor | None:
    """Return the group of each input, or ``None`` if they follow one another."""
    if not scheme.out_of_order and not module.has(_ORDER):
        return None
    stored = module.integers(_ORDER, (inputs,))
    if bool((stored == -1).all()):  # it was never set
        return None
    return module.groups(_ORDER, inputs, scheme.size(inputs), groups)
