"""Sessions of ONNX Runtime: their packages, devices, memory and errors."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import onnxruntime
import torch
from onnx.parser import parse_model

from paged_backends.runners.onnx import packages
from paged_backends.runners.onnx.sessions import Session, SessionMaker, reason_of
from paged_core.errors import SettingsError

pytestmark = pytest.mark.heavy


CPU = torch.device("cpu")
COPY = """<ir_version: 10, opset_import: ["": 21]>
g (float[T, 4] rows) => (float[T, 4] copy) {copy = Identity(rows)}"""


def copying() -> Session:
    maker = SessionMaker(CPU, 1)
    return Session(maker.open(parse_model(COPY).SerializeToString(), maker.options()))


# ---------------------------------------------------------------------- packages


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    *installed: str,
    modules: tuple[str, ...] = ("onnx", "onnxruntime"),
    gpu: bool = False,
) -> None:
    """Let packages be installed, and a GPU be there."""

    def version(package: str) -> str:
        if package not in installed:
            raise PackageNotFoundError(package)
        return "1.99"

    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None, origin="file") if name in modules else None

    monkeypatch.setattr(packages, "version", version)
    monkeypatch.setattr(packages, "find_spec", find_spec)
    monkeypatch.setattr(packages, "gpu_problem", lambda: None if gpu else "no GPU")


@pytest.mark.parametrize(
    ("installed", "given", "reason"),
    [
        ((), {}, r"onnxruntime is not installed: `pip install 'paged-core\[onnx\]'`"),
        (("onnxruntime",), {"modules": ("onnxruntime",)}, r"onnx is not installed: `.*\[onnx\]'`"),
        (
            ("onnxruntime", "onnxruntime-gpu"),
            {"gpu": True},
            r"both installed.*`pip uninstall .*\[onnx-gpu\]'`",
        ),
        (("onnxruntime-gpu",), {"modules": ("onnx",)}, r"files of onnxruntime-gpu are missing"),
    ],
)
def test_what_is_wrong_with_the_packages_and_what_helps(
    installed: tuple[str, ...], given: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, *installed, **given)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(packages.unavailable_reason())


def test_a_package_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(module: str) -> None:
        if module == "onnx":
            raise ImportError("lib.so.1: cannot open\nshared object file")

    pretend(monkeypatch, "onnxruntime")
    monkeypatch.setattr(packages, "import_module", fail)
    reason = packages.unavailable_reason()
    assert reason is not None
    assert reason.startswith(
        "onnx is installed but cannot be imported: ImportError: lib.so.1: cannot open shared "
        "object file; reinstall it: `pip uninstall -y onnx "
    )


def test_what_serves_and_on_what(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "onnxruntime")
    assert packages.unavailable_reason() is None
    assert packages.details() == "onnxruntime 1.99, on the CPU"
    pretend(monkeypatch, "onnxruntime", gpu=True)
    assert "on the CPU alone; for the GPU: `pip uninstall -y" in packages.details()
    pretend(monkeypatch, "onnxruntime-gpu", gpu=True)
    monkeypatch.setattr(packages, "cuda_problem", lambda: None)
    assert packages.details() == "onnxruntime-gpu 1.99, on CUDA"
    monkeypatch.setattr(packages, "cuda_problem", lambda: "no cuDNN")
    assert packages.details() == "onnxruntime-gpu 1.99, on the CPU alone: no cuDNN"


# ---------------------------------------------------------------------- devices


@pytest.mark.skipif(
    packages.CUDA in onnxruntime.get_available_providers(), reason="built with CUDA"
)
def test_a_package_without_cuda_is_refused_on_a_gpu() -> None:
    with pytest.raises(SettingsError, match=r"cuda:0: .* built without CUDA; `pip .*onnx-gpu"):
        SessionMaker(torch.device("cuda", 0), 1)
    with pytest.raises(SettingsError, match="cpu and cuda, not on mps"):
        SessionMaker(torch.device("mps"), 1)


# ---------------------------------------------------------------------- errors and memory


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : /src/core/graph/model.cc:256 ort::Model::Model("
            "onnx::ModelProto&&, const std::function<void(int)>&) Unsupported version\n",
            "Unsupported version",
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


def test_a_session_follows_what_it_is_given() -> None:
    """Other memory, and another number of rows."""
    session, memory = copying(), torch.randn(6, 4)
    for rows in (memory[:2], memory[:5], memory[1:3], memory.clone()):
        copy = torch.empty(len(rows), 4)
        session.run({"rows": rows, "copy": copy})
        assert torch.equal(copy, rows)
