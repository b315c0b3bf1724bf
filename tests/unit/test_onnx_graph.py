"""Graphs of ONNX that native's operations build compute what the operations do with tensors."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix, shape_of
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.linear_maker import StoredLinear
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.onnx import graph as graph_module
from paged_backends.runners.onnx.graph import Graph, GraphLinears, GraphOps
from paged_backends.runners.onnx.sessions import Session, SessionMaker
from paged_core.errors import UnsupportedModel

pytestmark = pytest.mark.heavy


F32 = torch.float32


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def opened(graph: Graph) -> Session:
    return graph.session(SessionMaker(torch.device("cpu"), 1))


def run(session: Session, **given: Tensor) -> Tensor:
    (result,) = session.ort.run(None, {name: value.numpy() for name, value in given.items()})
    return torch.from_numpy(result)


# ---------------------------------------------------------------------- operations


@pytest.mark.parametrize(
    ("compute", "residual"), [(F32, False), (F32, True), (torch.bfloat16, False)], ids=str
)
@pytest.mark.parametrize(
    "kind", ["rms", "layer", "layer without weights", "relu", "gelu", "gelu_tanh", "silu"]
)
def test_rows(kind: Any, residual: bool, compute: torch.dtype) -> None:
    """In bfloat16, of which a CPU has no sums, activations are computed in float32, and rounded."""
    rows, other, weight, bias = noise(5, 8), noise(5, 8) + 1, noise(8), noise(8) + 2

    def apply(ops: Ops, rows: Any, other: Any) -> Any:
        if kind == "rms":
            return ops.rms_norm(weight, 1e-5, 1.0)(rows, other)
        if kind.startswith("layer"):
            weights = (None, None) if "without" in kind else (weight, bias)
            return ops.layer_norm(8, *weights, 1e-5)(rows, other)
        return ops.activation(kind)(rows)

    graph = Graph()
    inputs: list[Any] = [graph.input(name, F32, 8).to(compute) for name in ("rows", "other")]
    result = apply(GraphOps(compute), inputs[0], inputs[1] if residual else None)
    graph.output("result", result, F32, 8)
    found = run(opened(graph), rows=rows, other=other)
    expected = apply(Ops(), rows, other if residual else None)
    error = 1e-5 if compute == F32 else 0.02
    torch.testing.assert_close(found, expected, rtol=error, atol=error)


def test_an_operator_that_this_version_lacks() -> None:
    graph = Graph()
    graph.output("result", graph.input("rows", F32, 4).op("Levitate"), F32, 4)
    with pytest.raises(UnsupportedModel, match=r"onnxruntime \S+ cannot make .*Levitate") as raised:
        opened(graph)
    assert "\n" not in str(raised.value)


# ---------------------------------------------------------------------- linear layers


def product(linear: StoredLinear, matrix: QuantizedMatrix | None, in_halves: bool) -> Session:
    quantized = None
    if matrix is not None:
        quantized = QuantizedLinears(matrix.weight_format, {linear: matrix})
    linears = GraphLinears(compute=F32, quantized=quantized, in_halves=in_halves)
    graph, (outputs, inputs) = Graph(), shape_of(linear.rows)
    rows: Any = graph.input("rows", F32, inputs)
    result: Any = linears(linear)(rows)
    graph.output("result", result, F32, outputs)
    return opened(graph)


@pytest.mark.parametrize("packs", [True, False])
def test_memory_that_a_session_reads_is_kept_and_no_other(
    packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a weight that was packed may be let go: it can change, and the session has another."""
    for quantized in (True, False):
        assert graph_module.packs_weights(quantized=quantized), "this build packs weights"
    monkeypatch.setattr(graph_module, "packs_weights", lambda **_: packs)
    weight, bias, rows = noise(96, 64), noise(96), noise(3, 64)
    linear = StoredLinear([weight], bias)
    session: Any = product(linear, None, False)
    kept = {tensor.data_ptr() for tensor in session._kept}
    assert kept == {tensor.data_ptr() for tensor in ((bias,) if packs else (weight, bias))}
    expected = run(session, rows=rows)
    torch.testing.assert_close(expected, rows @ weight.T + bias)
    (matrix,) = quantize([[weight]], WeightFormat(4, 32))
    weight.fill_(torch.nan)
    assert torch.equal(run(session, rows=rows), expected)
    session = product(linear, matrix, True)
    assert any(weight.dtype == torch.uint8 for weight in session._kept) is not packs


@pytest.mark.parametrize(
    ("shape", "group_size"), [((96, 64), 32), ((51, 72), 64), ((40, 300), 128)]
)
@pytest.mark.parametrize(("bits", "in_halves"), [(4, True), (8, True), (8, False)])
def test_products_are_those_of_the_weights_that_codes_stand_for(
    shape: tuple[int, int], group_size: Any, bits: Any, in_halves: bool
) -> None:
    weight, bias = noise(*shape), noise(shape[0])
    (matrix,) = quantize([[weight]], WeightFormat(bits, group_size))
    linear = StoredLinear([weight], bias if group_size > 32 else None)
    made = product(linear, matrix, in_halves)
    for count in (1, 2, 17):
        rows = noise(count, shape[1])
        expected = rows.double() @ matrix.dequantized().double().T
        if linear.bias_O is not None:
            expected += linear.bias_O
        torch.testing.assert_close(run(made, rows=rows).double(), expected, rtol=0, atol=1e-4)
