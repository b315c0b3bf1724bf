"""Graphs of ONNX that native's operations build compute what the operations do with tensors."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import torch
from torch import Tensor

from paged_backends.quantization.matrix import QuantizedMatrix
from paged_backends.quantization.quantize import quantize
from paged_backends.quantization.weight_format import WeightFormat
from paged_backends.runners.native.linear_maker import StoredLinear
from paged_backends.runners.native.ops import Rotary, TorchOps
from paged_backends.runners.native.quantized_linears import QuantizedLinears
from paged_backends.runners.onnx import graph as graph_module
from paged_backends.runners.onnx.graph import Graph, GraphOps
from paged_backends.runners.onnx.linears import FloatLinears, QuantizedGraphLinears
from paged_backends.runners.onnx.sessions import Session, SessionMaker
from paged_core.errors import UnsupportedModel

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

    def apply(ops: TorchOps, rows: Any, other: Any) -> Any:
        if kind == "rms":
            return ops.rms_norm(weight, 1e-5, 1.0)(rows, other)
        if kind.startswith("layer"):
            weights = (None, None) if "without" in kind else (weight, bias)
            return ops.layer_norm(8, *weights, 1e-5)(rows, other)
        return ops.activation(kind)(rows)

    graph = Graph()
    inputs: list[Any] = [graph.input(name, F32, 8).to(compute) for name in ("rows", "other")]
    result = apply(GraphOps(compute), inputs[0], inputs[1] if residual else None)
    graph.output("result", result.to(F32), F32, 8)
    found = run(opened(graph), rows=rows, other=other)
    expected = apply(TorchOps(), rows, other if residual else None)
    error = 1e-5 if compute == F32 else 0.02
    torch.testing.assert_close(found, expected, rtol=error, atol=error)


def test_a_gate() -> None:
    rows, graph = noise(5, 16), Graph()
    given: Any = graph.input("rows", F32, 16)
    result: Any = GraphOps(F32).gated("silu")(given)
    graph.output("result", result, F32, 8)
    found = run(opened(graph), rows=rows)
    torch.testing.assert_close(found, TorchOps().gated("silu")(rows))


@pytest.mark.parametrize("rotates", [False, True])
@pytest.mark.parametrize("norms", [False, True])
def test_heads(norms: bool, rotates: bool) -> None:
    query, key = noise(5, 3, 8), noise(5, 2, 8)
    weights = (noise(8), noise(8) + 1) if norms else (None, None)
    rotary = Rotary.at(torch.arange(3, 8), noise(4))
    graph, given = Graph(), {"query": query.flatten(1), "key": key.flatten(1)}
    symbols: list[Any] = [graph.input(name, F32, rows.shape[1]) for name, rows in given.items()]
    tables: Any = None
    if rotates:
        tables = [graph.input(name, F32, 4) for name in ("cos", "sin")]
        given |= {"cos": rotary.cos_TF, "sin": rotary.sin_TF}
    GraphOps(F32).heads(*weights, 1e-5, 1.0)(symbols[0], symbols[1], tables)
    for name, symbol in zip(("q", "k"), symbols, strict=True):
        graph.output(name, symbol, F32, given["query" if name == "q" else "key"].shape[1])
    results = opened(graph).ort.run(None, {name: rows.numpy() for name, rows in given.items()})
    TorchOps().heads(*weights, 1e-5, 1.0)(query, key, rotary if rotates else None)
    for result, heads in zip(results, (query, key), strict=True):
        torch.testing.assert_close(torch.from_numpy(result), heads.flatten(1))


def test_an_operator_that_this_version_lacks() -> None:
    graph = Graph()
    graph.output("result", graph.input("rows", F32, 4).op("Levitate"), F32, 4)
    with pytest.raises(UnsupportedModel, match=r"onnxruntime \S+ cannot make .*Levitate") as raised:
        opened(graph)
    assert "\n" not in str(raised.value)


# ---------------------------------------------------------------------- linear layers


@pytest.mark.parametrize("packs", [True, False])
def test_memory_that_a_session_reads_is_kept_and_no_other(
    packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a weight that was packed may be let go: it can change, and the session has another."""
    assert graph_module.packs_weights(), "this build of ONNX Runtime packs weights"
    monkeypatch.setattr(graph_module, "packs_weights", lambda: packs)
    weight, bias, rows = noise(96, 64), noise(96), noise(3, 64)
    graph = Graph()
    given: Any = graph.input("rows", F32, 64)
    result: Any = FloatLinears(F32)(StoredLinear([weight], bias))(given)
    graph.output("result", result, F32, 96)
    session: Any = opened(graph)
    kept = {tensor.data_ptr() for tensor in session._kept}
    assert kept == {tensor.data_ptr() for tensor in ((bias,) if packs else (weight, bias))}
    expected = run(session, rows=rows)
    torch.testing.assert_close(expected, rows @ weight.T + bias)
    weight.fill_(torch.nan)
    assert torch.equal(run(session, rows=rows), expected)


def quantized(linear: StoredLinear, matrix: QuantizedMatrix, **options: Any) -> Session:
    linears = QuantizedLinears({linear: matrix})
    graph, (outputs, inputs) = Graph(), matrix.shape
    rows: Any = graph.input("rows", F32, inputs)
    result: Any = QuantizedGraphLinears(linears, F32, **options)(linear)(rows)
    graph.output("result", result, F32, outputs)
    return opened(graph)


@pytest.mark.parametrize("shape", [(96, 64), (51, 72), (40, 300)], ids=str)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("in_halves", [True, False], ids=["halves", "whole"])
def test_products_are_those_of_the_weights_that_codes_stand_for(
    shape: tuple[int, int], group_size: Any, bits: Any, in_halves: bool
) -> None:
    weight, bias = noise(*shape), noise(shape[0])
    (matrix,) = quantize([[weight]], WeightFormat(bits, group_size))
    linear = StoredLinear([weight], bias if group_size > 32 else None)
    made = quantized(linear, matrix, in_halves=in_halves, packs_codes=in_halves)
    for count in (1, 2, 17):
        rows = noise(count, shape[1])
        expected = rows.double() @ matrix.dequantized().double().T
        if linear.bias_O is not None:
            expected += linear.bias_O
        torch.testing.assert_close(run(made, rows=rows).double(), expected, rtol=0, atol=1e-4)


def test_codes_that_are_not_packed_are_kept() -> None:
    weight = noise(40, 64)
    (matrix,) = quantize([[weight]], WeightFormat(4, 32))
    linear = StoredLinear([weight], None)
    for packs in (True, False):
        session: Any = quantized(linear, matrix, in_halves=True, packs_codes=packs)
        assert any(weight.dtype == torch.uint8 for weight in session._kept) is not packs
