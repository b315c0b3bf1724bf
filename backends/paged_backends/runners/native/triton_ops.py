"""Operations over the kernels in Triton: products are PyTorch's, what is between them is fused.

Nothing waits for the device, and no shape depends on numbers, so that a whole forward pass can be
captured in a CUDA graph.

Shapes as in :mod:`paged_backends.runners.native.ops`.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from paged_backends.kernels.triton.layer_ops import (
    gated,
    layer_norm,
    prepare_heads,
    rms_norm,
    rotary_angles,
)
from paged_backends.kernels.triton.sampling import best_tokens
from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.decoder import (
    HeadOp,
    Layer,
    Linear,
    Norm,
    Rotaries,
    Rotary,
    RowOp,
    RunsLayer,
    added,
)
from paged_backends.runners.native.ops import Ops
from paged_core.interfaces.attention import (
    HeadPreparation,
    LayerAttention,
    SupportsHeadPreparation,
)
from paged_core.interfaces.runner import SupportsFusedLayers

if TYPE_CHECKING:
    from paged_core.interfaces.runner import Attend


@dataclass(frozen=True, slots=True, eq=False)
class TritonHeadOp:
    """Norms of heads, where they have weights, and the rotary embedding."""

    query_norm: Tensor | None
    key_norm: Tensor | None
    eps: float
    offset: float

    def __call__(self, query_THD: Tensor, key_TKD: Tensor, rotary: Rotary | None) -> None:
        if not self.does_nothing(rotary):
            prepare_heads(
                query_THD,
                key_TKD,
                None if rotary is None else (rotary.cos_TF, rotary.sin_TF),
                query_norm_D=self.query_norm,
                key_norm_D=self.key_norm,
                eps=self.eps,
                offset=self.offset,
            )

    def does_nothing(self, rotary: Rotary | None) -> bool:
        """Return whether there are neither norms nor a rotary embedding."""
        return rotary is None and self.query_norm is None and self.key_norm is None

    def preparation(self, rotary: Rotary | None) -> HeadPreparation:
        """Return the same for attention that does it itself."""
        return HeadPreparation(
            query_norm=self.query_norm,
            key_norm=self.key_norm,
            eps=self.eps,
            offset=self.offset,
            cos=None if rotary is None else rotary.cos_TF,
            sin=None if rotary is None else rotary.sin_TF,
        )


class PreparedLayer:
    """Computes a layer of :class:`TritonOps`; its heads are prepared by the kernel that writes keys
    and values, where attention has one."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._checked: Sequence[LayerAttention] | None = None
        self._bound: SupportsHeadPreparation | None = None

    def __call__(self, hidden_TE: Tensor, rotaries: Rotaries, attend: Attend) -> Tensor:
        """See :class:`~paged_backends.runners.native.decoder.RunsLayer`."""
        layer, attention = self._layer, self._layer.attention
        rotary, heads = rotaries[attention.config.rope], attention.heads
        assert isinstance(heads, TritonHeadOp)
        if not isinstance(attend, SupportsFusedLayers) or heads.does_nothing(rotary):
            return layer(hidden_TE, rotaries, attend)
        if attend.layers is not self._checked:
            self._checked, bound = attend.layers, attend.layers[attention.index]
            self._bound = bound if isinstance(bound, SupportsHeadPreparation) else None
        if self._bound is None:
            return layer(hidden_TE, rotaries, attend)
        rows = attention.split(layer.attended_rows(hidden_TE))
        attended_THD = self._bound.prepare_and_forward(
            *rows, attend.plan, heads.preparation(rotary)
        )
        return layer.finish(attended_THD, hidden_TE)


class TritonOps(Ops):
    """Operations for float32, bfloat16 and float16 on a GPU, or in Triton's interpreter."""

    def __init__(self) -> None:
        super().__init__(computes_quantized=False)

    def linear(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> Linear:
        """Return the linear layer, which adds the residual in the product's own kernel."""
        weight_IO = weight_OI.T

        def apply(rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
            if residual_TO is None or bias_O is not None:
                return added(functional.linear(rows_TI, weight_OI, bias_O), residual_TO)
            return residual_TO.addmm_(rows_TI, weight_IO)

        return apply

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Norm:
        """Return RMSNorm, with the residual in one kernel."""

        def apply(rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
            return rms_norm(rows_TE, weight_E, eps, offset, residual_TE)

        return apply

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Norm:
        """Return LayerNorm, with the residual in one kernel."""

        def apply(rows_TE: Tensor, residual_TE: Tensor | None = None) -> Tensor:
            return layer_norm(rows_TE, weight_E, bias_E, eps, residual_TE)

        return apply

    def heads(
        self, query_norm_D: Tensor | None, key_norm_D: Tensor | None, eps: float, offset: float
    ) -> HeadOp:
        """Return norms and rotary embedding of query and key in one kernel, or in none."""
        return TritonHeadOp(query_norm_D, key_norm_D, eps, offset)

    def run(self, layer: Layer) -> RunsLayer:
        """Return the layer, whose attention prepares heads where it can."""
        return PreparedLayer(layer)

    def rotary(self, positions_T: Tensor, frequencies_F: Tensor) -> Rotary:
        """Return cosines and sines, computed in one kernel."""
        return Rotary(*rotary_angles(frequencies_F, positions_T))

    def gated(self, activation: Activation) -> RowOp:
        """Return the gate in one kernel."""
        return partial(gated, activation=activation)

    def best(self, logits_RV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first of equals, and its logit in float32."""
        return best_tokens(logits_RV)
