"""Sessions of ONNX Runtime: their packages, devices, memory and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

from paged_backends.runners.native.ops import TorchOps
from paged_backends.runners.native.rope import Rotary
from paged_backends.runners.native.stored_linear import StoredLinear
from paged_backends.runners.onnx import packages, providers, session_maker
from paged_backends.runners.onnx.binding import Binding
from paged_backends.runners.onnx.graph import Graph
from paged_backends.runners.onnx.linear_nodes import FloatLinearNodes
from paged_backends.runners.onnx.recorded_ops import RecordedOps
from paged_backends.runners.onnx.session import Session
from paged_backends.runners.onnx.session_errors import reason_of
from paged_backends.runners.onnx.session_maker import SessionMaker
from paged_backends.runners.onnx.session_stream import SessionStream
from paged_core.errors import EngineError, SettingsError, UnsupportedModel

CPU = torch.device("cpu")

# ---------------------------------------------------------------------- packages


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    *installed: str,
    modules: tuple[str, ...] = ("onnx", "onnxruntime"),
    gpu: bool = False,
    whole: bool = True,
) -> None:
    """Let packages be installed, and a GPU be there."""

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return "1.99"

    def find_spec(name: str) -> ModuleSpec | None:
        origin = "file" if whole else None
        return ModuleSpec(name, None, origin=origin) if name in modules else None

    monkeypatch.setattr(packages, "version", version)
    monkeypatch.setattr(packages, "find_spec", find_spec)
    monkeypatch.setattr(packages, "gpu_problem", lambda: None if gpu else "no GPU")


@pytest.mark.parametrize(
    ("installed", "given", "reason"),
    [
        ((), {}, r"onnxruntime is not installed: `pip install 'paged-core\[onnx\]'`"),
        ((), {"gpu": True}, r"onnxruntime is not installed: `.*\[onnx-gpu\]'`"),
        (("onnxruntime",), {"modules": ("onnxruntime",)}, r"onnx is not installed: `.*\[onnx\]'`"),
        (
            ("onnxruntime-gpu",),
            {"modules": ("onnxruntime",)},
            r"onnx is not installed: `.*\[onnx-gpu\]'`",
        ),
        (("onnxruntime", "onnxruntime-gpu"), {}, r"both installed.*`pip uninstall .*\[onnx\]'`"),
        (
            ("onnxruntime", "onnxruntime-gpu"),
            {"gpu": True},
            r"both installed.*`pip uninstall .*\[onnx-gpu\]'`",
        ),
        (("onnxruntime",), {"whole": False}, r"files of onnxruntime are missing.*`pip uninstall "),
        (("onnxruntime-gpu",), {"modules": ("onnx",)}, r"files of onnxruntime-gpu are missing"),
    ],
)
def test_what_is_wrong_with_the_packages_and_what_helps(
    installed: tuple[str, ...], given: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, *installed, **given)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(packages.obstacle())


@pytest.mark.parametrize("broken", ["onnx", "onnxruntime"])
def test_a_package_that_is_broken(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> None:
        if module == broken:
            raise ImportError("lib.so.1: cannot open\nshared object file")

    pretend(monkeypatch, "onnxruntime")
    monkeypatch.setattr(packages, "import_module", fail)
    reason = packages.obstacle()
    assert reason is not None
    assert reason.startswith(
        f"{broken} is installed but cannot be imported: ImportError: lib.so.1: cannot open shared "
        f"object file; reinstall it: `pip uninstall -y {broken} "
    )


def test_what_serves_and_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "onnxruntime")
    assert packages.obstacle() is None
    assert packages.details() == "onnxruntime 1.99, on the CPU"
    pretend(monkeypatch, "onnxruntime", gpu=True)
    assert "on the CPU alone; for the GPU: `pip uninstall -y" in packages.details()
    pretend(monkeypatch, "onnxruntime-gpu", gpu=True)
    monkeypatch.setattr(providers, "cuda_problem", lambda: None)
    assert packages.details() == "onnxruntime-gpu 1.99, on CUDA"
    monkeypatch.setattr(providers, "cuda_problem", lambda: "no cuDNN")
    assert packages.details() == "onnxruntime-gpu 1.99, on the CPU alone: no cuDNN"


# ---------------------------------------------------------------------- devices


@pytest.mark.skipif(
    providers.CUDA in onnxruntime.get_available_providers(), reason="built with CUDA"
)
def test_a_package_without_cuda_is_refused_on_a_gpu() -> None:
    with pytest.raises(SettingsError, match=r"cuda:0: .* built without CUDA; `pip .*onnx-gpu"):
        SessionMaker(torch.device("cuda", 0), 1)


def test_libraries_of_cuda_that_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package lists CUDA, and what a session reports is the CPU."""
    asked = []

    def make(_model: bytes, _options: object, *, providers: list[str]) -> Any:
        asked.append(providers)
        return onnxruntime_session

    onnxruntime_session = onnxruntime.InferenceSession(
        copying().model(), providers=["CPUExecutionProvider"]
    )
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [providers.CUDA])
    monkeypatch.setattr(onnxruntime, "InferenceSession", make)
    problem = providers.cuda_problem()
    assert problem is not None and "does not find the CUDA libraries" in problem
    assert asked == [[providers.CUDA, providers.CPU]]


def test_a_device_that_onnx_runtime_does_not_know() -> None:
    with pytest.raises(SettingsError, match="cpu and cuda, not on mps"):
        SessionMaker(torch.device("mps"), 1)


class FakeStream:
    """A CUDA stream that notes for which others it waits."""

    cuda_stream = 1234
    device = torch.device("cuda", 1)

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    def wait_stream(self, other: FakeStream) -> None:
        self.notes.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams do, on a device that is not there."""
    found: list[str] = []

    @contextmanager
    def current(stream: FakeStream) -> Iterator[None]:
        found.append(f"{stream.name} begins")
        yield
        found.append(f"{stream.name} ends")

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: FakeStream("own", found))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: FakeStream("outer", found))
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return found


def test_work_on_a_gpu_is_queued_in_one_stream(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_maker, "cuda_problem", lambda: None)
    maker = SessionMaker(torch.device("cuda", 1), 2)
    (name, options), *_ = maker._providers
    assert name == providers.CUDA
    assert options == {"device_id": "1", "user_compute_stream": "1234"}
    with maker.running():
        notes.append("sessions")
    order = ["own waits for outer", "own begins", "sessions", "own ends", "outer waits for own"]
    assert notes == order


def test_work_that_is_captured_is_refused(
    notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with (
        pytest.raises(EngineError, match="cannot be captured"),
        SessionStream(torch.device("cuda")).current(),
    ):
        pass
    assert notes == []


# ---------------------------------------------------------------------- graphs and memory


def copying() -> Graph:
    graph = Graph()
    graph.output("copy", graph.input("rows", torch.float32, 4), torch.float32, 4)
    return graph


def test_an_operator_that_this_version_lacks() -> None:
    graph = Graph()
    rows = graph.op("Levitate", graph.input("rows", torch.float32, 4))
    graph.output("result", rows, torch.float32, 4)
    with pytest.raises(UnsupportedModel, match=r"onnxruntime \S+ cannot make .*Levitate") as raised:
        SessionMaker(CPU, 1).open_graph(graph)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : /src/core/graph/model.cc:256 ort::Model::Model("
            "onnx::ModelProto&&, const std::function<void(int)>&) Unsupported version\n",
            "Unsupported version",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /src/rotary.cc:56 "
            "ort::Rotary<T>::Rotary(const Info&) const [with T = float] num_heads > 0 was false.",
            "num_heads > 0 was false",
        ),
        (
            '[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model. In Node, ("/norm",'
            ' Nope, "", -1) : ("x": tensor(float),) -> ("y",) , Error No Op registered for Nope',
            "node '/norm' (Nope): No Op registered for Nope",
        ),
        ("", "RuntimeError"),
        ("a" * 5000, "a" * 300),
    ],
)
def test_an_error_says_what_is_wrong_and_not_where_in_a_library(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


def linear_graph(weight: Tensor, bias: Tensor) -> Graph:
    graph = Graph()
    rows = graph.input("rows", torch.float32, weight.shape[1])
    result = FloatLinearNodes(torch.float32)(graph, StoredLinear([weight], bias), rows)
    graph.output("result", result, torch.float32, len(weight))
    return graph


def run(session: Session, rows: Tensor, width: int) -> Tensor:
    result = torch.empty(len(rows), width)
    binding = Binding(session)
    binding.bind("rows", rows)
    binding.bind("result", result)
    binding.run()
    return result


@pytest.mark.parametrize("packs", [True, False])
def test_memory_that_a_session_reads_is_kept_and_no_other(
    packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a weight that was packed may be let go: it can change, and the session has another."""
    assert session_maker.packs_weights(), "this build of ONNX Runtime packs weights"
    monkeypatch.setattr(session_maker, "packs_weights", lambda: packs)
    weight, norm, rows = torch.randn(96, 64), torch.ones(96), torch.randn(3, 64)
    graph = Graph()
    product = FloatLinearNodes(torch.float32)(
        graph, StoredLinear([weight], None), graph.input("rows", torch.float32, 64)
    )
    normed = graph.op(
        "SimplifiedLayerNormalization", product, graph.weight(norm), epsilon=1e-5, axis=-1
    )
    graph.output("result", normed, torch.float32, 96)
    session = SessionMaker(CPU, 1).open_graph(graph)
    kept = {tensor.data_ptr() for tensor in session._kept}
    assert kept == {tensor.data_ptr() for tensor in ((norm,) if packs else (weight, norm))}
    expected = run(session, rows, 96)
    weight.fill_(torch.nan)
    assert torch.equal(run(session, rows, 96), expected)


def test_a_binding_follows_what_is_bound_to_it() -> None:
    """To other memory, and to another number of rows."""
    weight, bias = torch.randn(8, 4), torch.zeros(8)
    session = SessionMaker(CPU, 1).open_graph(linear_graph(weight, bias))
    binding, memory = Binding(session), torch.randn(6, 4)
    for rows in (memory[:2], memory[:5], memory[1:3], memory.clone()):
        result = torch.empty(len(rows), 8)
        binding.bind("rows", rows)
        binding.bind("result", result)
        binding.run()
        assert torch.allclose(result, rows @ weight.T, atol=1e-5)


def test_recorded_operations_compute_what_torch_computes() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, heads = random(5, 8), random(5, 2, 8)
    weight, bias, norm = random(6, 8), random(6), random(8)
    rotary = Rotary.at(torch.arange(5), random(4))
    results = []
    for ops in (TorchOps(), RecordedOps()):
        query, key = heads.clone(), heads.clone()
        ops.heads(norm, norm, 1e-5, 1.0)(query, key, rotary)
        results.append(
            [
                ops.linear(weight, bias)(rows),
                ops.stacked([weight, weight])(rows),
                ops.rms_norm(norm, 1e-5, 1.0)(rows),
                ops.layer_norm(8, norm, norm, 1e-5)(rows, rows.clone()),
                ops.layer_norm(8, None, None, 1e-5)(rows),
                ops.gated("silu")(rows),
                ops.activation("gelu_tanh")(rows),
                ops.best(rows),
                query,
                key,
            ]
        )
    assert all(map(torch.equal, *results))
