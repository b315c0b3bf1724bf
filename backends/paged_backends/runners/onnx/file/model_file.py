"""One ONNX file, read within bounds: its graph, and where the weights beside it are.

Those are left where they are: they are read when a session needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, helper
from onnx.defs import onnx_opset_version
from onnxruntime import OrtValue, SessionOptions

from paged_backends.checkpoint.json_file import damaged, file_inside, one_line
from paged_backends.runners.onnx.file.file_structure import structure_problem
from paged_backends.runners.onnx.file.flat_graph import flatten, tensors_of_nodes
from paged_backends.runners.onnx.file.model_graph import MAX_SIDES, unserved
from paged_backends.runners.onnx.sessions import ON_CPU
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.field_rules import shown

_MAX_BYTES = (1 << 31) - 1
"""Of one message, in protobuf."""
_MAX_NAME = 200
_LFS = b"version https://git-lfs"
_MAPPED = frozenset(
    {
        *(TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16),
        *(TensorProto.INT64, TensorProto.INT32, TensorProto.INT16, TensorProto.INT8),
        *(TensorProto.UINT64, TensorProto.UINT32, TensorProto.UINT16, TensorProto.UINT8),
        TensorProto.BOOL,
    }
)
"""Types of weights that may lie outside of the message."""


def read_model_file(path: Path) -> ModelProto:
    """Return the model in a file, as one graph; where weights beside it lie is checked.

    Raises:
        CheckpointError: the file is damaged, or weights are missing or lie outside of its folder.
        UnsupportedModel: it needs a newer version of ONNX, weights are of an unknown type, or it
            is not one graph and cannot be made one.
    """
    model, content = ModelProto(), _content(path)
    problem = structure_problem(content)
    if problem is not None:
        raise unserved(f"{problem}; export it without functions and unrolled loops")
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise _damaged(path, str(error)) from error
    if not model.graph.node or not model.opset_import:
        raise _damaged(path, "it holds no graph")
    if not all(isinstance(text, str) for text in _texts(model)):
        raise _damaged(path, "it holds names that are no text")
    for entry in model.opset_import:
        if not entry.domain and entry.version > onnx_opset_version():
            raise UnsupportedModel(
                f"{path} was made for opset {entry.version} of ONNX, and the installed package "
                f"knows those up to {onnx_opset_version()}; `pip install -U onnx onnxruntime`"
            )
    for tensor in (*model.graph.initializer, *tensors_of_nodes(model)):
        _check_tensor(path, len(content), tensor)
    flatten(model)
    return model


def num_stored(path: Path, model: ModelProto) -> int:
    """Return the bytes of a file and of the weights beside it."""
    outside = (one for one in model.graph.initializer if one.data_location == TensorProto.EXTERNAL)
    sizes = (prod(one.dims) * _dtype(one).itemsize for one in outside)
    return path.stat().st_size + int(sum(sizes))


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise CheckpointError(
                f"{path} has {size} bytes, and an ONNX file holds at most {_MAX_BYTES}; larger "
                "weights belong into files beside it"
            )
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); check who may read it") from error
    if not content:
        raise _damaged(path, "it is empty")
    if content.startswith(_LFS):
        raise CheckpointError(
            f"{path} is a git-lfs pointer, not the model; run `git lfs pull` there"
        )
    return content


def _texts(model: ModelProto) -> Iterator[object]:
    """Yield all names; protobuf returns those that are not UTF-8 as bytes."""
    graph = model.graph
    for entry in model.opset_import:
        yield entry.domain
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
    for weight in graph.initializer:
        yield weight.name
        for item in weight.external_data:
            yield from (item.key, item.value)


def _check_tensor(path: Path, num_bytes: int, tensor: TensorProto) -> None:
    """Check a tensor in a file of so many bytes."""
    name, known = tensor.name[:_MAX_NAME], TensorProto.DataType.values()
    sides = len(tensor.dims) if all(size >= 0 for size in tensor.dims) else MAX_SIDES + 1
    if tensor.data_type not in known or sides > MAX_SIDES:
        raise _damaged(path, f"{name!r} has no known type or shape")
    if tensor.data_location != TensorProto.EXTERNAL:
        if prod(tensor.dims) > 8 * num_bytes:  # a number takes a bit at least
            raise _damaged(path, f"{name!r} is larger than the file")
        return
    if tensor.data_type not in _MAPPED:
        raise UnsupportedModel(
            f"{path} stores {name!r} as {TensorProto.DataType.Name(tensor.data_type)}, which is "
            "not known here; export it with weights in floating point, or in 4 or 8 bits of "
            "MatMulNBits"
        )
    try:
        place = _Place.of(tensor)
    except ValueError as error:
        raise _damaged(path, f"{name!r} lies at no number") from error
    _check_place(path, name, place, prod(tensor.dims) * _dtype(tensor).itemsize)


def _check_place(path: Path, tensor: str, place: _Place, num_bytes: int) -> None:
    """Check that a weight lies in a file of the folder, and within it."""
    file = file_inside(path.parent, place.location)
    if file is None or "*" in place.location:  # */_ORT_MEM_ADDR_/* is an address in memory
        raise damaged(
            f"{path} says that {tensor!r} is in {shown(place.location)}, which is not in its folder"
        )
    if not file.is_file():
        raise damaged(f"{path} lacks its weights: {file} is missing")
    begin, size = place.offset, file.stat().st_size
    if begin < 0 or place.length not in (0, num_bytes) or begin + num_bytes > size:
        raise damaged(
            f"{file} has {size} bytes, and {path.name} looks for {num_bytes} of {tensor!r} at "
            f"{begin}"
        )


def _damaged(path: Path, reason: str) -> CheckpointError:
    return damaged(f"{path} cannot be read as an ONNX model ({one_line(reason)})")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a weight lies: its file, and the bytes there; of length 0: as many as it has."""

    location: str
    offset: int
    length: int

    @classmethod
    def of(cls, tensor: TensorProto) -> Self:
        """Raise ValueError if the file says no numbers."""
        given = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = (int(given.get(name) or 0) for name in ("offset", "length"))
        return cls(given.get("location", ""), offset, length)


def _dtype(tensor: TensorProto) -> np.dtype[Any]:
    """Return how NumPy reads the numbers of a tensor: bfloat16, which it does not have, as bits."""
    if tensor.data_type == TensorProto.BFLOAT16:
        return np.dtype(np.uint16)
    return helper.tensor_dtype_to_np_dtype(tensor.data_type)


# ---------------------------------------------------------------------- weights for sessions


class StoredWeights:
    """Maps the files of one graph, whose places in them were checked. It outlives its sessions.

    Sessions get weights from there, and open no file themselves: ONNX Runtime refuses links, and
    the cache of a hub consists of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, np.ndarray[Any, Any]] = {}

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
            numbers, kind = self._numbers(weight), weight.data_type
            if numbers.ctypes.data % numbers.itemsize == 0:
                given[weight.name] = OrtValue.ortvalue_from_numpy_with_onnx_type(numbers, kind)
            elif copies is not None:
                copy = OrtValue.ortvalue_from_numpy_with_onnx_type(numbers.copy(), kind)
                given[weight.name] = copy
                copies.append(copy)
            else:
                del weight.external_data[:]
                weight.data_location = TensorProto.DEFAULT
                weight.raw_data = numbers.tobytes()
        options.add_external_initializers(list(given), list(given.values()))
        content: bytes = model.SerializeToString()
        return content

    def session_for_one_run(
        self, model: ModelProto, copies: list[OrtValue]
    ) -> onnxruntime.InferenceSession:
        """Return a session on the CPU that changes neither the graph nor weights, to save time.

        Args:
            copies: of weights; to be kept while the session is.

        Raises:
            ORT_ERRORS: ONNX Runtime lacks something that the model needs.
        """
        options = SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        content = self.serialize(model, options, copies)
        return onnxruntime.InferenceSession(content, options, providers=ON_CPU)

    def _numbers(self, weight: TensorProto) -> np.ndarray[Any, Any]:
        place, dtype = _Place.of(weight), _dtype(weight)
        if place.location not in self._files:
            mapped = np.memmap(self._folder / place.location, np.uint8, mode="c")
            self._files[place.location] = mapped
        end = place.offset + prod(weight.dims) * dtype.itemsize
        numbers = self._files[place.location][place.offset : end]
        return numbers.view(dtype).reshape(tuple(weight.dims))
