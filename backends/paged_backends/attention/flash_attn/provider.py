"""What the providers have in common: a layer that each can serve, or the reason why not."""

# ruff: noqa: N803 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from paged_backends.attention.flash_attn.sequences import Sequences
from paged_backends.attention.layer_checks import dtype_problem, heads_problem
from paged_backends.attention.optional_import import Unavailable, function_of
from paged_backends.kernels.nvidia import capability_problem
from paged_core.interfaces.layer import LayerSpec

_FEATURES = {"soft_cap": "soft cap", "alibi_slopes": "ALiBi"}


class Provider(ABC):
    """A package with flash attention over a paged cache.

    Shapes: T tokens, H query heads, K key/value heads, D head_dim; B blocks of P tokens.
    """

    name: ClassVar[str]
    """In the option ``provider``."""
    title: ClassVar[str]
    """In messages."""
    modules: ClassVar[Sequence[str]]
    """Where its function may be, the first that is installed."""
    function_name: ClassVar[str]
    arguments: ClassVar[Collection[str]]
    """Which the function must have; older versions lack some."""
    install: ClassVar[str]
    """The command that installs it."""
    lacks: ClassVar[Collection[str]] = ()
    """Fields of a layer that it does not know."""

    def __init__(self, *, deterministic: bool) -> None:
        """
        Args:
            deterministic: results do not depend, bit for bit, on the rest of the batch.
        """
        self.deterministic = deterministic

    @cached_property
    def function(self) -> Callable[..., Any]:
        """What computes attention.

        Raises:
            Unavailable: the package is not installed, or cannot be imported.
        """
        return function_of(
            self.modules, self.function_name, install=self.install, arguments=self.arguments
        )

    def check(self, layer: LayerSpec, capability: tuple[int, int]) -> str | None:
        """Return why it cannot serve ``layer`` on a GPU of this compute capability, or ``None``."""
        limit = (
            self.gpu_problem(capability)
            or dtype_problem(layer, ("bfloat16", "float16"))
            or heads_problem(layer)
            or self._feature_problem(layer)
            or self.head_dim_problem(layer.head_dim, capability)
        )
        if limit is not None:
            return limit
        reasons = [self.obstacle(), self.block_size_problem(layer.block_size)]
        return ", and ".join(filter(None, reasons)) or self.build_problem(layer)

    def obstacle(self) -> str | None:
        """Return why the package cannot be used, or ``None``."""
        try:
            _ = self.function
        except Unavailable as error:
            return str(error)
        return None

    def gpu_problem(self, capability: tuple[int, int]) -> str | None:
        """Return why it does not run on GPUs of this compute capability, or ``None``; this one
        takes Ampere and newer."""
        return capability_problem(capability)

    @abstractmethod
    def block_size_problem(self, block_size: int) -> str | None:
        """Return why it does not take pages of this size, and which it takes, or ``None``."""

    def head_dim_problem(self, head_dim: int, capability: tuple[int, int]) -> str | None:
        """Return why it does not take this head dimension, or ``None``."""
        if head_dim % 8 or head_dim > 256:
            return f"it takes head dimensions that are multiples of 8 up to 256, not {head_dim}"
        return None

    def build_problem(self, layer: LayerSpec) -> str | None:
        """Return what the installed build leaves out, or ``None``."""
        return None

    @abstractmethod
    def attend(
        self,
        layer: LayerSpec,
        query_THD: Tensor,
        keys_BPKD: Tensor,
        values_BPKD: Tensor,
        slopes_H: Tensor | None,
        sequences: Sequences,
    ) -> Tensor:
        """Return the attention [T, H, D] of the queries over the cache, which holds their keys."""

    def _feature_problem(self, layer: LayerSpec) -> str | None:
        for field in self.lacks:
            if getattr(layer, field) is not None:
                return f"it has no {_FEATURES[field]}"
        return None


def multiple_of_256(block_size: int) -> str | None:
    """Return why pages of ``block_size`` are not taken, or ``None``."""
    if block_size % 256:
        return f"its pages are multiples of 256 tokens: set block_size to 256, not {block_size}"
    return None


def shorter_than_a_tile(block_size: int) -> str | None:
    """Return why a page may be loaded whole, or ``None``.

    A tile of keys has 64 tokens at least. Where a page holds whole tiles, it is loaded by TMA with
    the rows behind the last token; their weight is 0, and 0 times a NaN that another sequence left
    there is NaN. Rows of shorter pages are loaded one by one, and zeros for those behind the last.
    """
    if block_size >= 64:
        return (
            "it may load pages of 64 tokens and more whole, where a NaN that another sequence "
            f"left would show: set block_size to 16 or 32, not {block_size}"
        )
    return None


def left_window(layer: LayerSpec) -> int:
    """Keys before its own that a token sees; -1: all."""
    return -1 if layer.sliding_window is None else layer.sliding_window - 1
