"""Weights of a graph that lie in files beside it, mapped into memory.

Sessions get them from there, and open no file themselves: ONNX Runtime refuses links, and the cache
of a hub consists of them.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnxruntime import OrtValue, SessionOptions

_Array = np.ndarray[Any, Any]


class StoredWeights:
    """Maps the files of one graph, whose places in them were checked. It outlives its sessions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _Array] = {}

    def serialize(
        self, model: ModelProto, options: SessionOptions, copies: list[OrtValue] | None = None
    ) -> bytes:
        """Return a model, for a session that reads its weights where they are mapped.

        Args:
            options: of that session.
            copies: where those at odd places, as in a message, are put, to be kept while the
                session is; ``None``: they are copied into the model, for the session to have them
                alone, in the order in which it computes with them.
        """
        given: dict[str, OrtValue] = {}
        for weight in model.graph.initializer:
            if weight.data_location != TensorProto.EXTERNAL:
                continue
            numbers = self._numbers(weight)
            if numbers.ctypes.data % numbers.itemsize == 0:
                given[weight.name] = _value(weight, numbers)
            elif copies is not None:
                given[weight.name] = _value(weight, numbers.copy())
                copies.append(given[weight.name])
            else:
                del weight.external_data[:]
                weight.data_location = TensorProto.DEFAULT
                weight.raw_data = numbers.tobytes()
        options.add_external_initializers(list(given), list(given.values()))
        content: bytes = model.SerializeToString()
        return content

    def _numbers(self, weight: TensorProto) -> _Array:
        entries = {entry.key: entry.value for entry in weight.external_data}
        name, begin = entries["location"], int(entries.get("offset") or 0)
        if name not in self._files:
            self._files[name] = np.memmap(self._folder / name, np.uint8, mode="c")
        dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
        end = begin + prod(weight.dims) * dtype.itemsize
        return self._files[name][begin:end].view(dtype).reshape(tuple(weight.dims))


def _value(weight: TensorProto, numbers: _Array) -> OrtValue:
    if weight.data_type == TensorProto.BFLOAT16:
        numbers = numbers.view(np.uint16)
    return OrtValue.ortvalue_from_numpy_with_onnx_type(numbers, weight.data_type)
