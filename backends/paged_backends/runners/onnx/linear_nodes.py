"""Linear layers as nodes of a graph."""

from __future__ import annotations

from typing import Protocol

import torch

from paged_backends.runners.native.stored_linear import StoredLinear
from paged_backends.runners.onnx.graph import Graph
from paged_backends.runners.onnx.own_pages import in_own_pages


class LinearNodes(Protocol):
    """Adds linear layers to a graph, in one format of weights."""

    def __call__(self, graph: Graph, linear: StoredLinear, rows: str, /) -> str:
        """Return ``rows @ weight.T + bias``, for ``rows`` [T, I] in the dtype computed in."""

    def release(self) -> None:
        """Release the memory of what was read to make the sessions of earlier graphs."""


class FloatLinearNodes:
    """Weights in the dtype that is computed in."""

    def __init__(self, compute: torch.dtype) -> None:
        self._compute = compute

    def __call__(self, graph: Graph, linear: StoredLinear, rows: str, /) -> str:
        inputs = [graph.weight(in_own_pages(linear.rows, self._compute), packable=True)]
        if linear.bias_O is not None:
            inputs.append(graph.weight(linear.bias_O.to(self._compute)))
        return graph.op("Gemm", rows, *inputs, transB=1)

    def release(self) -> None:
        """Do nothing: the assembly releases what is stored in floating point."""
