"""Matrices as AWQ's tools store them for matrix products: AutoAWQ's version ``gemm``.

An element of ``qweight``, int32 [inputs, outputs / 8], holds the codes of eight outputs, and one of
``qzeros`` [groups, outputs / 8] their zeros: first those at even places, then the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.quantized.bit_fields import unpacked_rows
from paged_backends.checkpoint.quantized.packed_codes import PackedCodes
from paged_backends.checkpoint.quantized.stored_module import StoredModule
from paged_backends.quantization.code_pairs import in_pairs
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape


@dataclass(frozen=True, slots=True)
class Awq:
    """The format of one checkpoint."""

    group_size: int
    """Less than 1: there is one group for all inputs."""
    zero_point: bool

    @classmethod
    def described(cls, fields: ConfigFields) -> Awq:
        """Read ``quantization_config``."""
        fields.one_of("bits", 4)
        name = "checkpoint_format" if fields.has("checkpoint_format") else "version"
        fields.choice(name, "gemm", ("gemm", "GEMM"))
        return cls(fields.integer("group_size", least=-1), fields.flag("zero_point", True))

    def has(self, module: StoredModule) -> bool:
        """Whether the matrix of a module is quantised."""
        return module.has("qweight")

    def matrix(self, module: StoredModule, shape: Shape) -> QuantizedMatrix:
        """Return a matrix; raises :class:`CheckpointError` if it is malformed."""
        outputs, inputs = shape
        size = self.group_size if 0 < self.group_size < inputs else inputs
        groups, in_row = -(-inputs // size), -(-outputs // 8)
        packed = module.integers("qweight", (inputs, in_row))
        zeros = None
        if self.zero_point or module.has("qzeros"):
            zeros = _in_order(module.integers("qzeros", (groups, in_row)))[:, :outputs].T
        return PackedCodes(
            bits=4,
            shape=shape,
            bytes_OB=in_pairs(_even(_in_order(packed)[:, :outputs].T)),
            scales_OG=module.numbers("scales", (groups, outputs)).T,
            zeros_OG=zeros,
            group_size=size,
        ).matrix()


def _even(codes: Tensor) -> Tensor:
    """Return rows of an even length, one behind the other in memory."""
    return functional.pad(codes, (0, codes.shape[1] % 2)).contiguous()


def _in_order(packed: Tensor) -> Tensor:
    """Return codes, uint8: of every eight, the second four go behind each of the first four."""
    codes = unpacked_rows(packed, 4)
    return codes.view(len(codes), -1, 2, 4).transpose(2, 3).reshape(codes.shape)
