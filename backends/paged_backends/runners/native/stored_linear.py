"""Linear layers whose weights are still where they are stored."""

# ruff: noqa: N803, N815 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.quantization.matrix import Rows
from paged_backends.runners.native.decoder import Embedding, Head, Layer
from paged_backends.runners.native.ops import Linear, added


@dataclass(frozen=True, slots=True, eq=False)
class StoredLinear:
    """A linear layer over I inputs and O outputs; its weight is not read before it is asked for."""

    rows: Rows
    """Its weight, in the dtype in which it is stored."""
    bias_O: Tensor | None

    @property
    def weight(self) -> Tensor:
        """The whole weight [O, I], stacked anew each time."""
        return torch.cat(list(self.rows)) if len(self.rows) > 1 else self.rows[0]

    def __call__(self, rows_TI: Tensor, residual_TO: Tensor | None = None) -> Tensor:
        return added(functional.linear(rows_TI, self.weight, self.bias_O), residual_TO)


Convert = Callable[[StoredLinear], Linear]
"""Makes a linear layer that is computed with out of one that is stored."""


def stored(linear: object) -> StoredLinear:
    """Return a layer as what it was made as."""
    assert isinstance(linear, StoredLinear), linear
    return linear


def stored_linears(head: Head, layers: Iterable[Layer]) -> Iterator[StoredLinear]:
    """Yield the linear layers of a head, then those of layers, in the order of their use."""
    projects = [] if head.project is None else [head.project]
    for linear in (*projects, head.output):
        yield stored(linear)
    for layer in layers:
        attention, mlp = layer.attention, layer.mlp
        for linear in (attention.query_key_value, attention.output, mlp.up, mlp.down):
            yield stored(linear)


def converted_embedding(embedding: Embedding, convert: Convert) -> Embedding:
    """Return an embedding with another linear layer in place of one that is stored."""
    project = None if embedding.project is None else convert(stored(embedding.project))
    return replace(embedding, project=project)


def converted_head(head: Head, convert: Convert) -> Head:
    """Return a head with other linear layers in place of those that are stored."""
    project = None if head.project is None else convert(stored(head.project))
    return replace(head, project=project, output=convert(stored(head.output)))


def converted_layer(layer: Layer, convert: Convert) -> Layer:
    """Return a layer with other linear layers in place of those that are stored."""
    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=replace(
            attention,
            query_key_value=convert(stored(attention.query_key_value)),
            output=convert(stored(attention.output)),
        ),
        mlp=replace(mlp, up=convert(stored(mlp.up)), down=convert(stored(mlp.down))),
    )
