"""Makes the sessions of one runner: all on one device, with the same options."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import onnxruntime
import torch

from paged_backends.runners.onnx.graph import Graph
from paged_backends.runners.onnx.ort_values import as_ort_value
from paged_backends.runners.onnx.packed_weights import packs_weights
from paged_backends.runners.onnx.providers import ON_CPU, cuda_problem, on_cuda
from paged_backends.runners.onnx.session import Session
from paged_backends.runners.onnx.session_errors import ORT_ERRORS, reason_of
from paged_backends.runners.onnx.session_stream import SessionStream
from paged_core.errors import EngineError, SettingsError, UnsupportedModel


class SessionMaker:
    """Makes sessions."""

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
        self._device = device
        self._num_threads = num_threads
        self._stream = SessionStream(device) if device.type == "cuda" else None
        self._providers = on_cuda(device, self._stream.stream) if self._stream else ON_CPU
        self._process = os.getpid()

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which sessions are run, and what they read is computed.

        Raises:
            EngineError: this process is a fork, which has none of the threads.
        """
        if self._process != os.getpid() and self._num_threads > 1:
            raise EngineError(
                "the threads of runner onnxruntime stay in the process that made them; make the "
                "engine after the fork, set threads to 1, or use runner native"
            )
        return nullcontext() if self._stream is None else self._stream.current()

    def open_graph(self, graph: Graph) -> Session:
        """Make a session of a graph whose weights lie in torch's memory, on the CPU.

        Raises:
            UnsupportedModel: ONNX Runtime lacks something that the graph needs.
        """
        options = self.options()
        values = [as_ort_value(weight) for weight in graph.weights.values()]
        options.add_external_initializers(list(graph.weights), values)
        session = self.open(graph.model(), options)
        copied = set(graph.weights) if self._stream is not None else set()  # to the device
        if self._stream is None and packs_weights():
            copied = graph.packable
        kept = [weight for name, weight in graph.weights.items() if name not in copied]
        return Session(session, kept)

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
        self, model: bytes, options: onnxruntime.SessionOptions, path: Path | None = None
    ) -> onnxruntime.InferenceSession:
        """Make a session of a model.

        Args:
            path: the finished file that it is a part of; ``None``: it was made from weights.

        Raises:
            UnsupportedModel: ONNX Runtime lacks something that the model needs.
        """
        try:
            return onnxruntime.InferenceSession(model, options, providers=self._providers)
        except ORT_ERRORS as error:
            whole, otherwise = "the model", "use runner native"
            if path is not None:
                whole, otherwise = str(path), "export the model again, for this version"
            raise UnsupportedModel(
                f"onnxruntime {onnxruntime.__version__} cannot make a session of a part of "
                f"{whole}: {reason_of(error)}; a newer version may, or {otherwise}"
            ) from error
