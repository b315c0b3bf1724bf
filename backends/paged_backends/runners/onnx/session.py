"""Sessions of ONNX Runtime: what it makes of one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from torch import Tensor

from paged_backends.runners.onnx.graph import ELEMENT_TYPES, Graph
from paged_backends.runners.onnx.providers import CPU, CUDA, providers_for
from paged_core.errors import SettingsError, UnsupportedModel

_ORT_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)
"""What ONNX Runtime raises; they have no base class of their own."""

DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}
"""What sessions call the dtypes of their inputs and outputs."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a session."""

    dtype: torch.dtype
    shape: tuple[int | str | None, ...]
    """A size that the step decides has a name, or none."""

    def shape_at(self, num_tokens: int) -> tuple[int, ...]:
        """Return its shape in a step of so many tokens."""
        return tuple(size if isinstance(size, int) else num_tokens for size in self.shape)


class Session:
    """A graph that can be run."""

    def __init__(self, session: onnxruntime.InferenceSession, kept: Sequence[Tensor] = ()) -> None:
        """``kept``: weights that the session reads where they are."""
        self.ort = session
        self._kept = kept
        self.inputs = {value.name: _value(value) for value in session.get_inputs()}
        self.outputs = {value.name: _value(value) for value in session.get_outputs()}


class SessionMaker:
    """Makes the sessions of one runner."""

    def __init__(self, device: torch.device, num_threads: int) -> None:
        self.device = device
        make: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream
        self.stream = make(device) if device.type == "cuda" else None
        """In which all sessions queue their work."""
        self._num_threads = num_threads

    def open_graph(self, graph: Graph) -> Session:
        """Make a session of a graph whose weights lie in torch's memory, on the CPU.

        Raises:
            UnsupportedModel: ONNX Runtime lacks something that the graph needs.
            SettingsError: it cannot compute on the device.
        """
        options = self.options()
        values = [as_ort_value(weight) for weight in graph.weights.values()]
        options.add_external_initializers(list(graph.weights), values)
        session = self.open(graph.model(), options)
        copied = graph.weights.keys() if self.stream is not None else set()
        if self.stream is None and packs_weights():
            copied = graph.packable
        return Session(session, [graph.weights[name] for name in graph.weights.keys() - copied])

    def options(self) -> onnxruntime.SessionOptions:
        """Return options that all sessions have in common."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        # between two sessions attention runs in torch's threads, on the same cores
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        return options

    def open(
        self, model: bytes | str, options: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        """Make a session of a model, or of the file at a path; raises as :meth:`open_graph`."""
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=providers_for(self.device, self.stream)
            )
        except _ORT_ERRORS as error:
            raise UnsupportedModel(
                f"onnxruntime {onnxruntime.__version__} cannot run it on {self.device}: "
                f"{str(error).partition(chr(10))[0]:.300}"
            ) from error
        if self.stream is not None and session.get_providers()[0] != CUDA:
            raise SettingsError(
                f"onnxruntime {onnxruntime.__version__} does not find the CUDA libraries that it "
                f"was built for, so it cannot compute on {self.device}; "
                "`pip install 'paged-core[onnx-gpu]'` brings them, or set device to cpu"
            )
        return session


def as_ort_value(tensor: Tensor) -> onnxruntime.OrtValue:
    """Return the same memory, on the CPU, for ONNX Runtime; the tensor must outlive it."""
    if tensor.dtype == torch.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            tensor.view(torch.uint16).numpy(), ELEMENT_TYPES[tensor.dtype]
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


@cache
def packs_weights() -> bool:
    """Whether a session has its own copy of the weights of linear layers, in another order.

    Then their memory can be given back. Builds for some processors do not pack; a session that is
    run twice, with the weight changed in between, shows it.
    """
    graph, weight = Graph(), torch.zeros(64, 64)
    rows = graph.input("rows", torch.float32, 64)
    result = graph.op("Gemm", rows, graph.weight(weight), transB=1)
    graph.output("result", result, torch.float32, 64)
    options = onnxruntime.SessionOptions()
    options.add_external_initializers(list(graph.weights), [as_ort_value(weight)])
    session = onnxruntime.InferenceSession(graph.model(), options, providers=[CPU])
    weight.fill_(1)
    return not session.run(None, {"rows": np.ones((2, 64), np.float32)})[0].any()


def _value(value: onnxruntime.NodeArg) -> Value:
    return Value(DTYPES[value.type], tuple(value.shape))
