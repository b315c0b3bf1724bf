"""Graphs of ONNX that native's own layers build, called with values of a graph for tensors.

The layers are made of :class:`GraphOps` and :class:`GraphLinears`; each operation that is called
adds its nodes.

Shapes: T tokens, I inputs, O outputs, E size of a norm, G groups of inputs, Y bytes of a group.
"""

# ruff: noqa: N803 - the shape of a tensor is the upper-case end of its name
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from torch import Tensor

from paged_backends.checkpoint.tensor_files import own_pages
from paged_backends.quantization.matrix import QuantizedMatrix, in_pairs, shape_of
from paged_backends.runners.native.config import Activation
from paged_backends.runners.native.decoder import Linear, Norm, RowOp, added
from paged_backends.runners.native.linear_maker import StoredLinear
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.onnx.sessions import (
    CONTRIB,
    ELEMENT_TYPES,
    Session,
    SessionMaker,
    as_ort_value,
)

_OPSET, _IR_VERSION = 21, 10
"""Versions of ONNX 1.16, which every supported version of ONNX Runtime reads."""
_FLOAT_ARITHMETIC = 1
"""The ``accuracy_level`` of float32."""
_NUM_LOW = 16
"""Codes of the low half: a step of the high half is so many of the low one."""


class Graph:
    """A graph whose values have one row per token: ``[T, ...]``."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []
        self._given: list[ValueInfoProto] = []
        self._returned: list[ValueInfoProto] = []
        self._tensors: dict[str, Tensor] = {}
        self._kept: list[Tensor] = []

    def input(self, name: str, dtype: torch.dtype, *sizes: int) -> Symbol:
        """Declare an input [T, sizes]."""
        described = helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], ["T", *sizes])
        self._given.append(described)
        return Symbol(self, name)

    def output(self, name: str, value: Symbol, dtype: torch.dtype, *sizes: int) -> None:
        """Return ``value`` [T, sizes] in ``dtype`` as the output ``name``."""
        kind = ELEMENT_TYPES[dtype]
        self._nodes.append(helper.make_node("Cast", [value.name], [name], to=kind))
        described = helper.make_tensor_value_info(name, kind, ["T", *sizes])
        self._returned.append(described)

    def weight(self, tensor: Tensor, *, kept: bool = True) -> Symbol:
        """Return a constant that the session gets from torch's memory.

        Args:
            kept: the session reads it there on a CPU; otherwise it has a copy.
        """
        name, tensor = f"weight{len(self._tensors)}", tensor.contiguous()
        self._tensors[name] = tensor
        if kept:
            self._kept.append(tensor)
        weight = TensorProto(
            name=name,
            data_type=ELEMENT_TYPES[tensor.dtype],
            dims=tensor.shape,
            data_location=TensorProto.EXTERNAL,
        )
        weight.external_data.add(key="location", value="memory")  # no file: a tensor is given
        self._weights.append(weight)
        return Symbol(self, name)

    def add(
        self, kind: str, *inputs: str, num_results: int = 1, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node, and return the names of its results."""
        names = [f"value{len(self._nodes)}.{index}" for index in range(num_results)]
        node = helper.make_node(kind, list(inputs), names, domain=domain, **attributes)
        self._nodes.append(node)
        return names

    def integers(self, *numbers: int) -> str:
        """Return the name of a constant [len(numbers)] int64."""
        array = np.array(numbers, np.int64)
        return self.add("Constant", value=numpy_helper.from_array(array))[0]

    def session(self, maker: SessionMaker) -> Session:
        """Return a session of the graph; it keeps those weights alive that it reads in place.

        Raises:
            UnsupportedModel: ONNX Runtime lacks something that the graph needs.
        """
        parts = self._nodes, "segment", self._given, self._returned, self._weights
        model = helper.make_model(
            helper.make_graph(*parts),
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(CONTRIB, 1)],
            ir_version=_IR_VERSION,
        )
        options = maker.options()
        values = [as_ort_value(tensor) for tensor in self._tensors.values()]
        options.add_external_initializers(list(self._tensors), values)
        session = maker.open(model.SerializeToString(), options)
        return Session(session, () if maker.copies_weights else self._kept)


@dataclass(slots=True)
class Symbol:
    """A value of a graph, with those methods of a tensor that layers call."""

    graph: Graph
    name: str

    def op(self, kind: str, *others: Symbol | str, **attributes: Any) -> Symbol:
        """Add an operation that reads this value first, and return its only result."""
        names = [each if isinstance(each, str) else each.name for each in others]
        return Symbol(self.graph, self.graph.add(kind, self.name, *names, **attributes)[0])

    def to(self, dtype: torch.dtype) -> Symbol:
        """Return the value in another dtype."""
        return self.op("Cast", to=ELEMENT_TYPES[dtype])

    def view(self, *sizes: int) -> Symbol:
        """Return the value in another shape; 0: as it is there, -1: what is left."""
        return self.op("Reshape", self.graph.integers(*sizes))

    def flatten(self, _axis: int) -> Symbol:
        """Return all of a token in one row."""
        return self.view(0, -1)

    def split_with_sizes(self, sizes: tuple[int, ...], dim: int) -> list[Symbol]:
        """Return parts of these sizes."""
        lengths = self.graph.integers(*sizes)
        names = self.graph.add("Split", self.name, lengths, num_results=len(sizes), axis=dim)
        return [Symbol(self.graph, name) for name in names]

    def chunk(self, count: int, dim: int) -> list[Symbol]:
        """Return equal parts."""
        names = self.graph.add("Split", self.name, num_results=count, axis=dim, num_outputs=count)
        return [Symbol(self.graph, name) for name in names]

    def copy_(self, other: Symbol) -> None:
        """Become another value, for all that read this one later."""
        self.name = other.name

    def add_(self, other: Symbol) -> Symbol:
        """Return the sum."""
        return self.op("Add", other)

    def __mul__(self, other: Symbol) -> Symbol:
        return self.op("Mul", other)


@dataclass(frozen=True, slots=True)
class SymbolRotary:
    """The rotary embedding of a batch, by tables [T, head_dim / 2]."""

    cos: Symbol
    sin: Symbol
    head_dim: int

    def rotate(self, heads: Symbol) -> None:
        """Rotate all heads."""
        # one sequence whose positions count from 0: the tables have a row per token
        first = heads.graph.integers(0)
        rows = heads.flatten(1).op("Unsqueeze", first)
        rows = rows.op("RotaryEmbedding", first, self.cos, self.sin, domain=CONTRIB)
        heads.copy_(rows.op("Squeeze", first).view(0, -1, self.head_dim))


# ---------------------------------------------------------------------- operations


class GraphOps(Ops):
    """Makes operations that take symbols, and add nodes to the graph of these.

    Args:
        compute: dtype of hidden states.
    """

    copies_weights = True  # by the session, so the embedding stays mapped as it is stored

    def __init__(self, compute: torch.dtype) -> None:
        super().__init__(computes_quantized=False)
        self._compute = compute

    def rms_norm(self, weight_E: Tensor, eps: float, offset: float) -> Norm:
        """Return RMSNorm."""
        return self._norm("SimplifiedLayerNormalization", eps, weight_E.float() + offset)

    def layer_norm(
        self, size: int, weight_E: Tensor | None, bias_E: Tensor | None, eps: float
    ) -> Norm:
        """Return LayerNorm; without weights, of ones."""
        weight = torch.ones(size) if weight_E is None else weight_E
        return self._norm("LayerNormalization", eps, weight, *([] if bias_E is None else [bias_E]))

    def _norm(self, kind: str, eps: float, *weights_E: Tensor) -> Norm:
        def apply(rows_TE: Any, residual_TE: Any = None) -> Any:
            given = [rows_TE.graph.weight(weight.to(self._compute)) for weight in weights_E]
            return added(rows_TE.op(kind, *given, epsilon=eps, axis=-1), residual_TE)

        return apply

    def activation(self, name: Activation) -> RowOp:
        """Return an activation without a gate, of float32: some versions lack some of bfloat16."""

        def apply(rows: Any) -> Any:
            rows = rows.to(torch.float32) if self._compute == torch.bfloat16 else rows
            if name == "relu":
                result = rows.op("Relu")
            elif name == "silu":  # x * sigmoid(alpha * x)
                result = rows.op("QuickGelu", domain=CONTRIB, alpha=1.0)
            else:
                result = rows.op("Gelu", approximate="tanh" if name == "gelu_tanh" else "none")
            return result.to(self._compute)

        return apply


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLinears:
    """Makes linear layers that take symbols; a weight is read when its layer is called.

    ``MatMulNBits`` computes in float: with its arithmetic in 8 bits, activations are rounded too,
    and a row's result depends on the last bits of what attention returns, and so on the rest of the
    batch. On a CPU there is float arithmetic for weights of 4 bits only. A weight of 8 bits is the
    sum of two of 4 bits, its high and its low half, and so is a linear layer.
    """

    compute: torch.dtype
    """Dtype of activations, and of weights that are not quantised."""
    quantized: QuantizedLinears | None
    """Their weights; ``None``: they are not quantised."""
    in_halves: bool
    """Compute weights of 8 bits as sums of two of 4 bits."""

    def __call__(self, linear: StoredLinear, /) -> Linear:
        """Return the layer of a stored one."""

        def apply(rows_TI: Any, residual_TO: Any = None) -> Any:
            if self.quantized is None:
                weight = _in_own_pages(linear, self.compute)
                given = rows_TI.graph.weight(weight, kept=not packs_weights(quantized=False))
                result = rows_TI.op("Gemm", given, transB=1)
            else:
                result = self._product(rows_TI, self.quantized.take(linear))
            if linear.bias_O is not None:
                result = result.add_(rows_TI.graph.weight(linear.bias_O.to(self.compute)))
            return added(result, residual_TO)

        return apply

    def release(self) -> None:
        """Release the memory of the file of quantised weights; what is used is read again."""
        if self.quantized is not None:
            self.quantized.release()

    def _product(self, rows: Symbol, matrix: QuantizedMatrix) -> Symbol:
        """``code - 128`` is ``16 * (high - 8) + low``; to multiply rows by 16 is exact."""
        graph, (outputs, groups) = rows.graph, matrix.scales_OG.shape
        scales = graph.weight(matrix.scales_OG.to(self.compute))
        if matrix.weight_format.bits == 4 or not self.in_halves:
            return _bits_product(rows, matrix, matrix.codes_OGY, scales)
        zeros = graph.weight(torch.zeros(outputs, -(-groups // 2), dtype=torch.uint8))
        larger = rows * graph.weight(torch.tensor(_NUM_LOW, dtype=self.compute))
        high, low = (in_pairs(half) for half in (matrix.codes_OGY >> 4, matrix.codes_OGY & 15))
        highs = _bits_product(larger, matrix, high, scales)
        return highs.add_(_bits_product(rows, matrix, low, scales, zeros))


def _bits_product(
    rows: Symbol, matrix: QuantizedMatrix, codes_OGY: Tensor, *others: Symbol
) -> Symbol:
    """Return the product with codes; a group has as many bits as its bytes."""
    group = matrix.weight_format.group_size
    bits = 8 * codes_OGY.shape[2] // group
    return rows.op(
        "MatMulNBits",
        rows.graph.weight(codes_OGY, kept=bits == 8 or not packs_weights(quantized=True)),
        *others,
        domain=CONTRIB,
        K=matrix.shape[1],
        N=matrix.shape[0],
        bits=bits,
        block_size=group,
        accuracy_level=_FLOAT_ARITHMETIC,
    )


def _in_own_pages(linear: StoredLinear, dtype: torch.dtype) -> Tensor:
    """Return the whole weight in ``dtype``: itself if it is so already, and otherwise a copy.

    Between what sessions allocate, the allocator of the C library would keep it for later copies: a
    third of the weights' size in the end.
    """
    first = linear.rows[0]
    if len(linear.rows) == 1 and first.dtype == dtype and first.is_contiguous():
        return first
    return torch.cat(list(linear.rows), out=own_pages(shape_of(linear.rows), dtype))


@cache
def packs_weights(*, quantized: bool) -> bool:
    """Return whether a session on a CPU keeps weights in an order of its own, not the originals.

    Builds for some processors do not. A session that is run after a weight was changed shows it.
    """
    graph, size = Graph(), 64
    rows = graph.input("rows", torch.float32, size)
    if quantized:
        zeros, ones = torch.full((size, 2, 16), 0x88, dtype=torch.uint8), torch.ones(size, 2)
        given = [graph.weight(zeros), graph.weight(ones)]
        options = {"K": size, "N": size, "bits": 4, "block_size": 32, "accuracy_level": 1}
        result = rows.op("MatMulNBits", *given, domain=CONTRIB, **options)
    else:
        zeros = torch.zeros(size, size)
        result = rows.op("Gemm", graph.weight(zeros), transB=1)
    graph.output("result", result, torch.float32, size)
    session = graph.session(SessionMaker(torch.device("cpu"), 1))
    zeros.fill_(1)
    return not any(
        session.ort.run(None, {"rows": np.ones((count, size), np.float32)})[0].any()
        for count in (1, 2, size)
    )
