"""Slot ``runner``: the model, as a function from tokens and positions to hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paged_core.interfaces.attention import LayerAttention
from paged_core.interfaces.layer import LayerSpec, ModelSize

if TYPE_CHECKING:
    from torch import Tensor

    Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
    """``attend(layer, query, key, value)``: shapes as in
    :meth:`~paged_core.interfaces.attention.LayerAttention.forward`."""


class Runner(ABC):
    """Runs a decoder-only model over a flattened batch; it does not know of blocks."""

    @abstractmethod
    def load(self) -> None:
        """Read the weights and put them on the device.

        Raises:
            CheckpointError: they are missing, truncated or in a format that may not be loaded.
            UnsupportedModel: this runner lacks a feature of the model; the message names it.
        """

    @property
    @abstractmethod
    def layers(self) -> Sequence[LayerSpec]:
        """The attention layers, in order; known once loaded."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Token ids are ``0 .. vocab_size - 1``."""

    @property
    @abstractmethod
    def max_model_len(self) -> int | None:
        """Tokens that a sequence may have; ``None``: the model does not say."""

    @property
    @abstractmethod
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence unless it asks to ignore them."""

    @abstractmethod
    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Return hidden states [T, hidden] of ``tokens`` [T] int64 at ``positions`` [T] int64."""

    @abstractmethod
    def logits(self, hidden: Tensor, /) -> Tensor:
        """Return logits [R, vocab_size] of the rows [R, hidden] that sample a token, in the layers'
        dtype or in float32."""


@runtime_checkable
class SupportsFusedLayers(Protocol):
    """An ``attend`` whose layers a runner may call itself, to compute all layers in one call or to
    have them prepare heads."""

    layers: Sequence[LayerAttention]
    plan: Any


@runtime_checkable
class SupportsModelSize(Protocol):
    """A runner, or an executor, that knows the size of its model; benchmarks ask for it."""

    def model_size(self) -> ModelSize | None:
        """Return it once loaded; ``None``: it is not known."""


@runtime_checkable
class SupportsBestTokens(Protocol):
    """A runner that finds the best token of a row without returning its logits."""

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the best token [R] int64 of the rows [R, hidden], the first of equals, and its
        logit [R]; NaN if any logit of the row is NaN."""


@runtime_checkable
class SupportsTopLogits(Protocol):
    """A runner that finds the best tokens of a row without returning the logits of all."""

    def top_logits(self, hidden: Tensor, k: int, /) -> tuple[Tensor, Tensor]:
        """Return the ``k`` highest logits [R, k] float32 of the rows [R, hidden], the highest
        first, NaN before all, and their tokens [R, k] int64; of equals, the lowest tokens first.

        Args:
            k: at most the size of the vocabulary.
        """
