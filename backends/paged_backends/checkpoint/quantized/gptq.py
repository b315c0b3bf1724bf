"""Matrices as GPTQ's tools store them: AutoGPTQ, and GPTQModel after it.

An element of ``qweight``, int32 [inputs / n, outputs], holds n codes of one output, the first in
its lowest bits; one of ``qzeros`` [groups, outputs / n], the zeros of n outputs. The first version
of the format holds every zero less one, which was subtracted from whole elements: what is borrowed
from the next zero comes back when one is added in the same way. ``g_idx`` is the group of each
input, out of order where inputs were quantised in the order of their weight (``desc_act``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from paged_backends.checkpoint.config_fields import ConfigFields
from paged_backends.checkpoint.quantized.bit_fields import in_bytes, unpacked_rows
from paged_backends.checkpoint.quantized.packed_codes import PackedCodes
from paged_backends.checkpoint.quantized.stored_module import StoredModule
from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.weight_format import Shape
from paged_core.log import get_logger

_ONES: dict[int, int] = {4: 0x11111111, 8: 0x01010101}
"""One in each code of an element."""

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Gptq:
    """The format of one checkpoint."""

    bits: Literal[4, 8]
    group_size: int
    """Less than 1: there is one group for all inputs."""
    zeros_less_one: bool
    out_of_order: bool
    """Inputs of a group are not one after another: ``g_idx`` says which they are."""

    @classmethod
    def described(cls, fields: ConfigFields) -> Gptq:
        """Read ``quantization_config``."""
        version = fields.choice("checkpoint_format", "gptq", ("gptq", "gptq_v2"))
        fields.choice("pack_dtype", "int32", ("int32",))
        group_size = fields.integer("group_size", least=-1)
        if group_size == 0:
            raise fields.wrong("group_size", "-1 or at least 1")
        out_of_order = fields.flag("desc_act", False) and group_size > 0
        if out_of_order:
            _log.info("groups_out_of_order", method="gptq", consequence="int8 in groups of 32")
        return cls(
            4 if fields.one_of("bits", 4, 8) == 4 else 8,
            group_size,
            zeros_less_one=version == "gptq",
            out_of_order=out_of_order,
        )

    def has(self, module: StoredModule) -> bool:
        """Whether the matrix of a module is quantised."""
        return module.has("qweight")

    def matrix(self, module: StoredModule, shape: Shape) -> QuantizedMatrix:
        """Return a matrix; raises :class:`CheckpointError` if it is malformed."""
        outputs, inputs = shape
        in_one = 32 // self.bits
        size = self.group_size if 0 < self.group_size < inputs else inputs
        groups = -(-inputs // size)
        packed = module.integers("qweight", (-(-inputs // in_one), outputs))
        named = self.out_of_order or module.has("g_idx")
        return PackedCodes(
            bits=self.bits,
            shape=shape,
            bytes_OB=in_bytes(packed.T),
            scales_OG=module.numbers("scales", (groups, outputs)).T,
            zeros_OG=self._zeros(module, groups, outputs).T,
            group_size=size,
            groups_I=module.groups("g_idx", inputs, size, groups) if named else None,
        ).matrix()

    def _zeros(self, module: StoredModule, groups: int, outputs: int) -> Tensor:
        packed = module.integers("qzeros", (groups, -(-outputs * self.bits // 32)))
        if self.zeros_less_one:
            packed = packed + _ONES[self.bits]
        return unpacked_rows(packed, self.bits)[:, :outputs]
