"""Weights of a graph that lie in files beside it, mapped into memory.

Sessions get them from there, and open no file themselves: ONNX Runtime refuses links, and the cache
of a hub consists of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnxruntime import OrtValue, SessionOptions

_Array = np.ndarray[Any, Any]


class StoredWeights:
    """Maps the files of one graph, whose places in them were checked. It outlives its sessions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _Array] = {}

    def give(self, options: SessionOptions, weights: Iterable[TensorProto]) -> None:
        """Let a session of these options read its weights where they are mapped."""
        stored = [weight for weight in weights if weight.data_location == TensorProto.EXTERNAL]
        names = [weight.name for weight in stored]
        options.add_external_initializers(names, [self._value(weight) for weight in stored])

    def _value(self, weight: TensorProto) -> OrtValue:
        entries = {entry.key: entry.value for entry in weight.external_data}
        name, begin = entries["location"], int(entries.get("offset") or 0)
        if name not in self._files:
            self._files[name] = np.memmap(self._folder / name, np.uint8, mode="c")
        dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
        end = begin + prod(weight.dims) * dtype.itemsize
        numbers = self._files[name][begin:end]
        if begin % dtype.itemsize:
            numbers = numbers.copy()
        if weight.data_type == TensorProto.BFLOAT16:
            numbers = numbers.view(np.uint16)
        else:
            numbers = numbers.view(dtype)
        shaped = numbers.reshape(tuple(weight.dims))
        return OrtValue.ortvalue_from_numpy_with_onnx_type(shaped, weight.data_type)
