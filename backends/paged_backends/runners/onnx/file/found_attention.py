"""What is known of an attention that was found in a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphMask:
    """What a graph adds to scores [1, H, T, L] of T new tokens and all L tokens."""

    value: str
    """The mask, or the scores that it was added to."""
    product: str | None = None
    """The product of query and key, if ``value`` contains it."""
    causal: bool = False
    """Later tokens are masked beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAttention:
    """One attention, taken out of a graph: names of values, and how it computes.

    Shapes: T tokens, H query heads, K key/value heads, D head_dim; H, K and D are known when the
    values are.
    """

    node: str
    """How an error names it."""
    query: str
    """[1, T, H, D]."""
    key: str
    """[1, T, K, D]."""
    value: str
    """[1, T, K, D]."""
    attended: str
    """[T, H, D], the result: an input of the graph from now on."""
    past: tuple[str, str]
    """The inputs of the graph that hold keys and values of earlier tokens."""
    scale: float | None
    """``None``: ``head_dim ** -0.5``."""
    sliding_window: int | None = None
    soft_cap: float | None = None
    mask: GraphMask | None = None
    """A value of the graph as it is in its file; ``None``: the operator masks by itself."""
