"""Sessions of ONNX Runtime on one device, with inputs and outputs in torch's memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import onnxruntime
import torch
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from torch import Tensor

from paged_backends.runners.onnx.packages import CPU, CUDA, cuda_problem
from paged_core.errors import EngineError, SettingsError, UnsupportedModel

_NAMES = ("float", "float16", "bfloat16", "int64", "int32", "bool", "uint8", "int8")
"""Names in ONNX of the dtypes that cross the borders of graphs."""
CONTRIB = "com.microsoft"
"""The domain of the operators that ONNX Runtime adds to those of ONNX."""
DTYPES: dict[str, torch.dtype] = {f"tensor({name})": getattr(torch, name) for name in _NAMES}
"""By the types of inputs and outputs of sessions."""
ELEMENT_TYPES: dict[torch.dtype, int] = {
    getattr(torch, name): TensorProto.DataType.Value(name.upper()) for name in _NAMES
}

_ON_CPU: Sequence[tuple[str, Mapping[str, str]]] = [(CPU, {})]
"""The providers of sessions on the CPU."""

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
"""Errors of ONNX Runtime, which have no base class of their own."""


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of a session."""

    dtype: torch.dtype
    shape: tuple[int | str | None, ...]
    """The dimension that counts tokens has a name, or none; the others have numbers."""

    def shape_at(self, num_tokens: int) -> tuple[int, ...]:
        """Return its shape in a step of so many tokens."""
        return tuple(size if isinstance(size, int) else num_tokens for size in self.shape)


class Session:
    """A graph that can be run."""

    def __init__(self, session: onnxruntime.InferenceSession, kept: object = ()) -> None:
        """
        Args:
            kept: what holds weights that it reads where they are; it lives as long.
        """
        self.ort = session
        self._kept = kept
        self.inputs = {value.name: _value(value) for value in session.get_inputs()}
        self.outputs = {value.name: _value(value) for value in session.get_outputs()}
        self._binding = session.io_binding()
        self._options = onnxruntime.RunOptions()
        # what is queued after it on a GPU comes after it, and the host need not wait
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(self, tensors: Mapping[str, Tensor]) -> None:
        """Compute the outputs; on a GPU, queue the work that does. Nothing is copied.

        Args:
            tensors: all inputs and outputs by their names, contiguous.
        """
        for name, tensor in tensors.items():
            put = self._binding.bind_input if name in self.inputs else self._binding.bind_output
            device, kind = tensor.device, ELEMENT_TYPES[tensor.dtype]
            put(name, device.type, device.index or 0, kind, tuple(tensor.shape), tensor.data_ptr())
        self.ort.run_with_iobinding(self._binding, self._options)


def _value(value: onnxruntime.NodeArg) -> Value:
    return Value(DTYPES[value.type], tuple(value.shape))


def as_ort_value(tensor: Tensor) -> onnxruntime.OrtValue:
    """Return the memory of a contiguous tensor on the CPU, which must outlive every use of it."""
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            tensor.view(torch.uint16).numpy(), ELEMENT_TYPES[tensor.dtype]
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


# ---------------------------------------------------------------------- making sessions


class SessionMaker:
    """Makes the sessions of one runner: all on one device, with the same options."""

    def __init__(self, device: torch.device, num_threads: int) -> None:
        """
        Args:
            num_threads: of each session on a CPU. They sleep while it does not run: the threads of
                a pool for all sessions would spin on the cores that attention needs.

        Raises:
            SettingsError: ONNX Runtime cannot compute on the device.
        """
        if device.type not in ("cpu", "cuda"):
            raise SettingsError(
                f"runner onnxruntime computes on cpu and cuda, not on {device}; set device to cpu"
            )
        problem = cuda_problem() if device.type == "cuda" else None
        if problem is not None:
            raise SettingsError(
                f"runner onnxruntime cannot compute on {device}: {problem}; or set device to cpu"
            )
        self._num_threads = num_threads
        self._process = os.getpid()
        self._providers = _ON_CPU
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":  # ONNX Runtime does not take the default stream for a user's
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream = str(self._stream.cuda_stream)
            options = {"device_id": str(device.index or 0), "user_compute_stream": stream}
            self._providers = [(CUDA, options), *_ON_CPU]

    @property
    def copies_weights(self) -> bool:
        """Return whether sessions have all weights in the memory of a GPU."""
        return self._stream is not None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let sessions be run, and what they read be computed, in one CUDA stream.

        The stream before waits for it, and the host for neither.

        Raises:
            EngineError: this process is a fork, which has none of the threads; or work is being
                captured in a graph, which sessions cannot be.
        """
        if self._process != os.getpid() and self._num_threads > 1:
            raise EngineError(
                "the threads of runner onnxruntime stay in the process that made them; make the "
                "engine after the fork, set threads to 1, or use runner native"
            )
        if self._stream is None:
            yield
            return
        if torch.cuda.is_current_stream_capturing():
            raise EngineError("sessions of ONNX Runtime cannot be captured in CUDA graphs")
        outer = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            outer.wait_stream(self._stream)

    def options(self) -> onnxruntime.SessionOptions:
        """Return the options that all sessions have in common."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, and need not be printed as well
        options.intra_op_num_threads = self._num_threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # shapes change from step to step, and an arena for every session would keep the largest
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        return options

    def open(
        self, model: bytes, options: onnxruntime.SessionOptions
    ) -> onnxruntime.InferenceSession:
        """Make a session of a model.

        Raises:
            UnsupportedModel: ONNX Runtime lacks something that the model needs.
        """
        try:
            return onnxruntime.InferenceSession(model, options, providers=self._providers)
        except _ORT_ERRORS as error:
            raise UnsupportedModel(
                f"onnxruntime {onnxruntime.__version__} cannot make a session of a part of the "
                f"model: {reason_of(error)}; a newer version may, or use runner native"
            ) from error


# ---------------------------------------------------------------------- errors

_MOST_READ, _MOST_SHOWN = 4000, 300
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(
    r"(?:Exception during initialization: )?"
    r"\S+\.(?:cc|cpp|cu|cuh|h|hpp):\d+ "  # a line of its source
    r"[^()]*\((?:[^()]|\([^()]*\))*\)"  # a function and its parameters
    r"(?: const)?(?: \[with [^\]]*\])? "
)
_NODE = re.compile(
    r"This is an invalid model\. In Node, \(\"(?P<name>[^\"]*)\", (?P<kind>[^,]*),.* , Error "
)
"""A node with the types of all that it reads and returns."""


def reason_of(error: Exception) -> str:
    """Return what an error of ONNX Runtime says, in one line of 300 characters at most.

    It names what is wrong and with which node, without places in C++.
    """
    text = " ".join(str(error)[:_MOST_READ].split())
    text = _PLACE.sub("", _CODE.sub("", text))
    text = _NODE.sub(lambda found: f"node {found['name']!r} ({found['kind']}): ", text)
    return text[:_MOST_SHOWN].rstrip(" .;") or type(error).__name__
