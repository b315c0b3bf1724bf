"""Large weights inside of an ONNX file, left where they are.

The file is a message of protobuf. It is rewritten so that these weights lie "in another file",
which is this one: then they are read like those of files that really lie beside it, when a session
needs them.

The format of messages: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto

_LEAST_BYTES = 1024
"""Of a weight that is left in the file: shapes are inferred from smaller ones."""
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT = 10

_GRAPH = ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = TensorProto.RAW_DATA_FIELD_NUMBER


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

    Args:
        content: of that file.

    Raises:
        DecodeError: it is no message.
    """

    def graph(field: _Field) -> bytes | None:
        if field.number != _GRAPH or not field.delimited:
            return None
        return _message(_GRAPH, _rewritten(content, field.content, field.end, weight))

    def weight(field: _Field) -> bytes | None:
        if field.number != _INITIALIZER or field.end - field.begin < _LEAST_BYTES:
            return None
        return _message(_INITIALIZER, _rewritten(content, field.content, field.end, numbers))

    def numbers(field: _Field) -> bytes | None:
        """Where they are; in a message, fields that follow are merged."""
        size = field.end - field.content
        if field.number != _RAW_DATA or not field.delimited or size < _LEAST_BYTES:
            return None
        place = TensorProto(data_location=TensorProto.EXTERNAL)
        entries = {"location": name, "offset": str(field.content), "length": str(size)}
        for key, value in entries.items():
            place.external_data.add(key=key, value=value)
        serialized: bytes = place.SerializeToString()
        return serialized

    return _rewritten(content, 0, len(content), graph)


def _rewritten(
    content: memoryview, begin: int, end: int, replaced: Callable[[_Field], bytes | None]
) -> bytes:
    """Return a message, each of its fields as ``replaced`` returns it; ``None``: as it is."""
    parts = []
    for field in _fields(content, begin, end):
        other = replaced(field)
        parts.append(bytes(content[field.begin : field.end]) if other is None else other)
    return b"".join(parts)


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


def _message(number: int, content: bytes) -> bytes:
    """Return a field that is a message."""
    return _encoded(number << 3 | _DELIMITED) + _encoded(len(content)) + content


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
