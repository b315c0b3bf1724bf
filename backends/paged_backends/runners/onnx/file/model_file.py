"""One ONNX file, read within bounds: its graph, and where its weights are.

Large weights are left where they are, in files beside it or in the file itself: they are read when
a session needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, helper
from onnx.defs import onnx_opset_version
from onnxruntime import OrtValue, SessionOptions

from paged_backends.runners.onnx.sessions import ON_CPU
from paged_core.errors import CheckpointError, UnsupportedModel

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
    """Return the model in a file, without its weights; where they lie is checked.

    Raises:
        CheckpointError: the file is damaged, or weights are missing or lie outside of its folder.
        UnsupportedModel: it needs a newer version of ONNX, or weights are of an unknown type.
    """
    model = ModelProto()
    try:
        model.ParseFromString(_light(path))
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
    for tensor in model.graph.initializer:
        _check_tensor(path, tensor)
    return model


def _light(path: Path) -> bytes:
    """Return the content of a file without its large weights."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise CheckpointError(
                f"{path} has {size} bytes, and an ONNX file holds at most {_MAX_BYTES}; larger "
                "weights belong into files beside it"
            )
        if not size:
            raise _damaged(path, "it is empty")
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            if content[: len(_LFS)] == _LFS:
                raise CheckpointError(
                    f"{path} is a git-lfs pointer, not the model; run `git lfs pull` there"
                )
            with memoryview(content) as view:
                return without_weights(view, path.name)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); check who may read it") from error


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


def _check_tensor(path: Path, tensor: TensorProto) -> None:
    name, known = tensor.name[:_MAX_NAME], TensorProto.DataType.values()
    if tensor.data_type not in known or any(size < 0 for size in tensor.dims):
        raise _damaged(path, f"{name!r} has no known type or shape")
    if tensor.data_location != TensorProto.EXTERNAL:
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
    name = place.location
    file = path.parent / name
    plain = 0 < len(name) <= _MAX_NAME and name.isprintable() and ".." not in Path(name).parts
    inside = plain and file.parent.resolve().is_relative_to(path.parent.resolve())
    if not inside or Path(name).is_absolute():
        raise CheckpointError(
            f"{path} says that {tensor!r} is in {name[:100]!r}, which is not in its folder; "
            "download the checkpoint again"
        )
    if not file.is_file():
        raise CheckpointError(
            f"{path} lacks its weights: {file} is missing; download the checkpoint again"
        )
    begin, size = place.offset, file.stat().st_size
    if begin < 0 or place.length not in (0, num_bytes) or begin + num_bytes > size:
        raise CheckpointError(
            f"{file} has {size} bytes, and {path.name} looks for {num_bytes} of {tensor!r} at "
            f"{begin}; download the checkpoint again"
        )


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read as an ONNX model ({' '.join(reason.split())[:200]}); download the "
        "checkpoint again"
    )


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


# ---------------------------------------------------------------------- weights in the file itself

# The format of messages: https://protobuf.dev/programming-guides/encoding/

_LEAST_BYTES = 1024
"""Of a weight that is left in the file: shapes are inferred from smaller ones."""
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: its number, all of its bytes, and those of its content."""

    number: int
    delimited: bool
    begin: int
    content: int
    end: int


def without_weights(content: memoryview, name: str) -> bytes:
    """Return a model whose large weights say that they lie in the file ``name``.

    Then they are read like those of files that really lie beside it.

    Args:
        content: of that file.

    Raises:
        DecodeError: it is no message.
    """

    def graph(field: _Field) -> bytes | None:
        if field.number != ModelProto.GRAPH_FIELD_NUMBER or not field.delimited:
            return None
        return message(field, weight)

    def weight(field: _Field) -> bytes | None:
        if field.number != GraphProto.INITIALIZER_FIELD_NUMBER:
            return None
        return message(field, numbers) if field.end - field.begin >= _LEAST_BYTES else None

    def numbers(field: _Field) -> bytes | None:
        """Where they are; in a message, fields that follow are merged."""
        size = field.end - field.content
        if field.number != TensorProto.RAW_DATA_FIELD_NUMBER or not field.delimited:
            return None
        if size < _LEAST_BYTES:
            return None
        place = TensorProto(data_location=TensorProto.EXTERNAL)
        entries = {"location": name, "offset": str(field.content), "length": str(size)}
        for key, value in entries.items():
            place.external_data.add(key=key, value=value)
        serialized: bytes = place.SerializeToString()
        return serialized

    def message(field: _Field, replaced: Callable[[_Field], bytes | None]) -> bytes:
        changed = rewritten(field.content, field.end, replaced)
        return _encoded(field.number << 3 | _DELIMITED) + _encoded(len(changed)) + changed

    def rewritten(begin: int, end: int, replaced: Callable[[_Field], bytes | None]) -> bytes:
        """Return a message, each of its fields as ``replaced`` returns it; ``None``: as it is."""
        parts = []
        for field in _fields(content, begin, end):
            other = replaced(field)
            parts.append(bytes(content[field.begin : field.end]) if other is None else other)
        return b"".join(parts)

    return rewritten(0, len(content), graph)


def _fields(content: memoryview, begin: int, end: int) -> Iterator[_Field]:
    while begin < end:
        tag, place = _varint(content, begin, end)
        kind = tag & 7
        start = place
        if kind == _VARINT:
            _, place = _varint(content, place, end)
        elif kind == _DELIMITED:
            length, start = _varint(content, place, end)
            place = start + length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError("a field has an unknown kind")
        if place > end:
            raise DecodeError("a field ends behind its message")
        yield _Field(tag >> 3, kind == _DELIMITED, begin, start, place)
        begin = place


def _varint(content: memoryview, place: int, end: int) -> tuple[int, int]:
    """Return a number of variable length, and the place behind it."""
    number = 0
    for index in range(_MAX_VARINT):
        if place + index >= end:
            break
        byte = content[place + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, place + index + 1
    raise DecodeError("a number does not end")


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
