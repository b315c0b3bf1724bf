"""Headers and blocks of GGUF files: values as the package ``gguf`` writes them, within bounds."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf import GGUFValueType as Type

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.gguf.architecture import config_of
from paged_backends.checkpoint.gguf.header import BlockType, GgufHeader, Metadata
from paged_backends.checkpoint.gguf.reader import read_header
from paged_backends.checkpoint.gguf.tensors import QUANTIZED, QuantizedTensor
from paged_backends.runners.native.config import DecoderConfig
from paged_backends.runners.native.families import decoder_config
from paged_core.errors import CheckpointError

pytestmark = pytest.mark.heavy


# ---------------------------------------------------------------------- values


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


def header(num_tensors: int, num_values: int, rest: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_values) + rest


def one(kind: Type, value: bytes) -> bytes:
    """The header of a file with one value, called ``a``."""
    return header(0, 1, struct.pack("<Q1sI", 1, b"a", kind) + value)


MANY = 1 << 18
HOSTILE: dict[str, tuple[bytes, str]] = {
    "the longest string": (one(Type.STRING, struct.pack("<Q", 2**64 - 1)), "ends behind"),
    "a list of long strings": (
        one(Type.ARRAY, struct.pack("<IQQQ", Type.STRING, 2, 2**60, 0)),
        "is too long",
    ),
    "a list of lists": (
        one(Type.ARRAY, struct.pack("<IQ", Type.ARRAY, MANY) * 9),
        "there is no list of ARRAY",
    ),
    "many empty values": (header(0, MANY, struct.pack("<QIB", 0, 0, 0) * MANY), "announces"),
    "a tensor of many sides": (
        header(1, 0, struct.pack("<Q1sI", 1, b"a", MANY) + bytes(8 * MANY + 12)),
        "sides",
    ),
    "an alignment that overflows": (
        header(
            1,
            1,
            struct.pack("<Q17sII", 17, b"general.alignment", Type.UINT32, 2**31)
            + struct.pack("<Q1sIQIQ", 1, b"a", 1, 4, 0, 2**64 - 1)
            + bytes(64),
        ),
        "begins at byte|ends at byte",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused_and_takes_no_memory(name: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=reason):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# ---------------------------------------------------------------------- configuration

PATH = Path("model.gguf")
SHAPE = {
    "block_count": 26,
    "context_length": 8192,
    "embedding_length": 2304,
    "feed_forward_length": 9216,
    "attention.head_count": 8,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


def described(architecture: str, **values: Any) -> DecoderConfig:
    named = {f"{architecture}.{name}": value for name, value in (SHAPE | values).items()}
    metadata = Metadata(PATH, {"general.architecture": architecture, **named})
    header = GgufHeader(PATH, metadata, {})
    return decoder_config(Checkpoint(PATH.parent, config_of(header), {}, header))


def test_a_llama_without_rotary_values() -> None:
    config = described("llama")
    (layer,) = set(config.layers)
    assert config.num_kv_heads == config.num_heads == 8
    assert config.head_dim == 288
    assert layer.rope is not None
    assert layer.rope.theta == 10000
    assert layer.sliding_window is None
    assert config.tied


def test_gemma2_has_caps_and_a_window_in_every_other_layer() -> None:
    config = described("gemma2", **{"attention.key_length": 256, "attention.value_length": 256})
    assert [layer.sliding_window for layer in config.layers[:3]] == [4096, None, 4096]
    assert {layer.soft_cap for layer in config.layers} == {50}
    assert config.logits_soft_cap == 30


def test_gemma3_has_a_full_layer_in_six_and_two_bases() -> None:
    config = described("gemma3", **{"attention.sliding_window": 512})
    assert [layer.sliding_window for layer in config.layers[:7]] == [512] * 5 + [None, 512]
    assert [layer.rope and layer.rope.theta for layer in config.layers[4:6]] == [1e4, 1e6]
    assert config.logits_soft_cap is None


@pytest.mark.parametrize(("architecture", "largest"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemma_scales_its_queries_otherwise(architecture: str, largest: int) -> None:
    values = {"attention.key_length": 128, "attention.value_length": 128}
    values |= {"attention.sliding_window": 512}
    small = described(architecture, **values)
    large = described(architecture, **values, block_count=largest)
    assert small.layers[0].scale == 128**-0.5
    assert large.layers[0].scale == (2304 / 8) ** -0.5


# ---------------------------------------------------------------------- blocks

KINDS = [BlockType(name, *gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]]) for name in QUANTIZED]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_any_bytes_are_the_same_numbers(kind: BlockType) -> None:
    num_rows, random = 3, np.random.default_rng(3)
    shape = (num_rows, 256)
    blocks = random.integers(0, 256, (num_rows, 256 // kind.length * kind.num_bytes), np.uint8)
    stored = QuantizedTensor(kind, shape, torch.from_numpy(blocks))
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[kind.name])
    numbers = stored.dequantize(torch.float32)
    np.testing.assert_array_equal(numbers.numpy(), expected)
    torch.testing.assert_close(
        stored.dequantize(torch.bfloat16),
        torch.from_numpy(expected).bfloat16(),
        rtol=0,
        atol=0,
        equal_nan=True,
    )
