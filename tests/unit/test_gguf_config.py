"""What the values of a GGUF file say where they say nothing: what llama.cpp takes for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.checkpoint.gguf.architecture import config_of
from paged_backends.checkpoint.gguf.header import GgufHeader
from paged_backends.checkpoint.gguf.values import Metadata
from paged_backends.runners.native.config import DecoderConfig
from paged_backends.runners.native.families import decoder_config

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
