"""Operations over the kernels in Triton: products are PyTorch's, what is between them is fused.

Nothing waits for the device, and no shape depends on numbers, so that a whole forward pass can be
captured in a CUDA graph.

Shapes as in :mod:`paged_backends.runners.native.ops`.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from functools import partial

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
from paged_backends.runners.native.ops import HeadOp, Linear, Norm, Rotary, RowOp, TorchOps, added


class TritonOps(TorchOps):
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
        has_norm = query_norm_D is not None or key_norm_D is not None

        def apply(query_THD: Tensor, key_TKD: Tensor, rotary: Rotary | None) -> None:
            if rotary is None and not has_norm:
                return
            prepare_heads(
                query_THD,
                key_TKD,
                None if rotary is None else (rotary.cos_TF, rotary.sin_TF),
                query_norm_D=query_norm_D,
                key_norm_D=key_norm_D,
                eps=eps,
                offset=offset,
            )

        return apply

    def rotary(self, positions_T: Tensor, frequencies_F: Tensor) -> Rotary:
        """Return cosines and sines, computed in one kernel."""
        return Rotary(*rotary_angles(frequencies_F, positions_T))

    def gated(self, activation: Activation) -> RowOp:
        """Return the gate in one kernel."""
        return partial(gated, activation=activation)

    def best(self, logits_RV: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first of equals, and its logit in float32."""
        return best_tokens(logits_RV)
