"""A session with its inputs and outputs in tensors of torch."""

from __future__ import annotations

import onnxruntime
from torch import Tensor

from paged_backends.runners.onnx.graph import ELEMENT_TYPES
from paged_backends.runners.onnx.session import Session


class Binding:
    """One session, and the memory that it reads and writes; nothing is copied.

    It refers to memory, not to tensors: those that were bound must be alive when it is run.
    """

    def __init__(self, session: Session) -> None:
        self._session = session.ort
        self._binding = session.ort.io_binding()
        self._options = onnxruntime.RunOptions()
        # what is queued after it on a GPU comes after it, and the host need not wait
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._inputs = session.inputs.keys()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}

    def bind(self, name: str, tensor: Tensor) -> None:
        """Let an input or output be ``tensor``, which must be contiguous."""
        place = tensor.data_ptr(), tuple(tensor.shape)
        if self._bound.get(name) == place:
            return
        put = self._binding.bind_input if name in self._inputs else self._binding.bind_output
        device = tensor.device
        put(name, device.type, device.index or 0, ELEMENT_TYPES[tensor.dtype], place[1], place[0])
        self._bound[name] = place

    def run(self) -> None:
        """Compute the outputs; on a GPU, queue the work that does."""
        self._session.run_with_iobinding(self._binding, self._options)
