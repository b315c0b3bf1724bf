"""Values of GGUF files as the package ``gguf`` writes them, and none that end behind the header."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Type

from paged_backends.checkpoint.gguf.header import read_header
from paged_backends.checkpoint.gguf.values import DamagedValues, ValueReader

VALUES: list[tuple[Type, Any]] = [
    (Type.UINT8, 255),
    (Type.INT8, -128),
    (Type.UINT16, 65535),
    (Type.INT16, -32768),
    (Type.UINT32, 2**32 - 1),
    (Type.INT32, -(2**31)),
    (Type.UINT64, 2**64 - 1),
    (Type.INT64, -(2**63)),
    (Type.FLOAT32, 0.5),
    (Type.FLOAT64, 1e-300),
    (Type.BOOL, True),
    (Type.STRING, "żółć"),
]


def test_values_of_every_type_alone_and_in_a_list(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in VALUES:
        writer.add_key_value(kind.name, value, kind)
        writer.add_key_value(f"{kind.name}S", [value] * 3, Type.ARRAY, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    values = read_header(path).metadata.values
    for kind, value in VALUES:
        assert values[kind.name] == value
        assert type(values[kind.name]) is type(value)
        assert list(values[f"{kind.name}S"]) == [value] * 3


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<IQ", Type.STRING, 5) + b"abcde",
        struct.pack("<IQ", Type.STRING, 2**64 - 1),
        struct.pack("<IIQ", Type.ARRAY, Type.STRING, 1) + b"\0" * 7,
        struct.pack("<IIQ", Type.ARRAY, Type.UINT8, 2) + b"\1\2",
        struct.pack("<IIQ", Type.ARRAY, Type.UINT8, 2**63),
        struct.pack("<IQ", Type.UINT64, 7),
    ],
)
def test_what_ends_behind_the_header_is_not_read(content: bytes) -> None:
    reader = ValueReader(content + b"\0" * 99, len(content) - 1)
    with pytest.raises(DamagedValues):
        reader.value()
