"""How much of an ONNX file is not numbers of weights, counted before protobuf makes objects of it.

A node without a name takes two bytes of a file and two thousand of memory. So what is not numbers
is bounded, and may be read at some cost; numbers take what they are.

The format of protobuf: fields one after another, each a varint, ``number << 3 | kind``, and its
value: a varint (kind 0), 8 bytes (1), a length and so many bytes (2), or 4 bytes (5).
"""

from __future__ import annotations

from collections.abc import Iterator

_MAX_STRUCTURE = 32 << 20
"""Bytes; the largest decoders, with 60,000 nodes for experts, take 20 MB."""
_MAX_ENTRIES = 400_000
"""Nodes, their attributes, weights and descriptions of values in a graph."""
_GRAPH, _NODE, _WEIGHT, _ATTRIBUTE, _TENSOR = 7, 1, 5, 5, 5
"""Fields of a model, of a graph, of a node and of an attribute."""
_NUMBERS = (4, 5, 7, 9, 10, 11)
"""Fields of a tensor."""

_Part = tuple[int, int, int]
"""The number of a field, and where its bytes begin and end."""


def structure_problem(content: bytes) -> str | None:
    """Return why a file has too many parts to be read, or ``None``."""
    left, entries = len(content), 0
    for graph in _chosen(content, (0, 0, len(content)), (_GRAPH,)):
        for entry in _parts(content, graph):
            entries += 1
            tensors = [entry] if entry[0] == _WEIGHT else []
            for attribute in _chosen(content, entry, (_ATTRIBUTE,)) if entry[0] == _NODE else ():
                entries += 1
                tensors += _chosen(content, attribute, (_TENSOR,))
            for tensor in tensors:
                left -= sum(end - begin for _, begin, end in _chosen(content, tensor, _NUMBERS))
            if entries > _MAX_ENTRIES:
                return f"its graph has more than {_MAX_ENTRIES} nodes, attributes and values"
    if left > _MAX_STRUCTURE:
        return (
            f"{left} bytes of it are no numbers of weights, and at most {_MAX_STRUCTURE} are read"
        )
    return None


def _chosen(content: bytes, part: _Part, numbers: tuple[int, ...]) -> Iterator[_Part]:
    return (one for one in _parts(content, part) if one[0] in numbers)


def _parts(content: bytes, part: _Part) -> Iterator[_Part]:
    """Yield the fields with bytes in a part, up to the first that makes no sense."""
    _, place, end = part
    while place < end:
        key, place = _varint(content, place, end)
        kind = key & 7
        if kind == 0:
            _, place = _varint(content, place, end)
        elif kind in (1, 5):
            place += 8 if kind == 1 else 4
        elif kind == 2:
            length, place = _varint(content, place, end)
            if length > end - place:
                return
            yield key >> 3, place, place + length
            place += length
        else:
            return


def _varint(content: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    number = shift = 0
    while place < end and shift < 70:
        byte = content[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
    return number, end
