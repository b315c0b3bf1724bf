"""Component ``roofline``: the time that a device's bandwidth and arithmetic allow for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.documents import parse_json, read_text
from paged_plugins.lab.cost_model import CostModel, CostModelContext, StepWork
from paged_plugins.lab.settings import RooflineSettings

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """Peaks of one device, from its data sheet."""

    memory_bytes: int
    bandwidth: float
    """Bytes per second of its own memory."""
    flops_16: float
    """Dense multiply-adds of 16-bit numbers, two operations each, per second."""
    flops_32: float
    """Likewise of 32-bit numbers, without reduced precision."""
    interconnect: float
    """Bytes per second to another device, in one direction."""
    host_bandwidth: float
    """Bytes per second to the host's memory, in one direction."""


DEVICES: Mapping[str, Device] = {
    # NVIDIA's data sheets, without sparsity; A100 and H100: SXM
    "a100-40g": Device(40 * _GIB, 1.555e12, 312e12, 19.5e12, 300e9, 25e9),
    "a100-80g": Device(80 * _GIB, 2.039e12, 312e12, 19.5e12, 300e9, 25e9),
    "h100": Device(80 * _GIB, 3.35e12, 989e12, 67e12, 450e9, 50e9),
    "h200": Device(141 * 10**9, 4.8e12, 989e12, 67e12, 450e9, 50e9),
    "l4": Device(24 * _GIB, 300e9, 121e12, 30.3e12, 25e9, 25e9),
    # NVIDIA's Ada whitepaper: AD106 with 36 SMs at 2.175 GHz, 128-bit GDDR6
    "rtx-4070-laptop": Device(8 * _GIB, 256e9, 80e12, 20e12, 12e9, 12e9),
}


def device(name: str) -> Device:
    """Return a device by its name.

    Raises:
        SettingsError: none is called that.
    """
    if name not in DEVICES:
        known = did_you_mean(name, DEVICES)
        raise SettingsError(f"cost_model.device: no device is called {name!r}{known}")
    return DEVICES[name]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model, with the names of a checkpoint's ``config.json``."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    gated: bool = True
    """True if the feed-forward layer has three matrices; otherwise it has two."""
    tied: bool = False
    """True if the head shares the weights of the embedding."""

    @property
    def layer_weights(self) -> int:
        """Weights of the linear layers, which every token is multiplied by."""
        query = self.num_attention_heads * self.head_dim
        cached = self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * (query + cached)
        feed_forward = (3 if self.gated else 2) * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * (attention + feed_forward)

    @property
    def head_weights(self) -> int:
        """Weights of the head."""
        return self.hidden_size * self.vocab_size

    @property
    def weights(self) -> int:
        """All weights that are kept in memory; norms and biases are left out."""
        return self.layer_weights + self.head_weights * (1 if self.tied else 2)

    @property
    def cached_numbers_per_token(self) -> int:
        """Numbers in one token's keys and values, in all layers."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim

    @property
    def operations_per_pair(self) -> int:
        """Floating-point operations for one query to attend to one token, in all layers."""
        return 4 * self.num_hidden_layers * self.num_attention_heads * self.head_dim


SHAPES: Mapping[str, ModelShape] = {
    "opt-13b": ModelShape(40, 5120, 20480, 40, 40, 128, 50_272, 2048, gated=False, tied=True),
    "llama-2-7b": ModelShape(32, 4096, 11008, 32, 32, 128, 32_000, 4096),
    "llama-2-13b": ModelShape(40, 5120, 13824, 40, 40, 128, 32_000, 4096),
    "llama-3.1-8b": ModelShape(32, 4096, 14336, 32, 8, 128, 128_256, 131_072),
    "llama-3.1-70b": ModelShape(80, 8192, 28672, 64, 8, 128, 128_256, 131_072),
    "qwen3-0.6b": ModelShape(28, 1024, 3072, 16, 8, 128, 151_936, 40_960, tied=True),
    "qwen3-8b": ModelShape(36, 4096, 12288, 32, 8, 128, 151_936, 40_960),
    "mistral-7b": ModelShape(32, 4096, 14336, 32, 8, 128, 32_000, 32_768),
    "smollm-135m": ModelShape(30, 576, 1536, 9, 3, 64, 49_152, 2048, tied=True),
}
"""From the ``config.json`` of each model as it is published."""

_UNGATED = {"opt", "gpt2", "gpt_neox", "phi", "bloom", "gptj"}
_LARGEST = 10**7
"""No size in a ``config.json`` is larger."""


def model_shape(name: str) -> ModelShape:
    """Return the shape of a model by its name, or from the ``config.json`` in a folder.

    Raises:
        SettingsError: none is called that, or the file does not give a shape.
    """
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name).expanduser() / "config.json"
    if not path.is_file():
        known = did_you_mean(name, SHAPES)
        raise SettingsError(
            f"cost_model.model: no model is called {name!r}{known}; a folder needs a config.json"
        )
    try:
        return _from_config(parse_json(read_text(path)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"cost_model.model: cannot read {path}: {reason}") from None


def _from_config(config: Any) -> ModelShape:
    """Return the shape that a ``config.json`` describes; ValueError if it does not."""
    if not isinstance(config, Mapping):
        raise ValueError("it is no table")

    def size(*names: str, default: int | None = None) -> int:
        """The first of several spellings."""
        value = next((config[name] for name in names if config.get(name) is not None), default)
        if type(value) is not int or not 0 < value <= _LARGEST:
            given = json.dumps(value)[:40]
            raise ValueError(f"{names[0]} is {given}; it must be a whole number up to {_LARGEST:,}")
        return value

    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    kind = config.get("model_type")
    gated = kind not in _UNGATED
    return ModelShape(
        num_hidden_layers=size("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden),
        num_attention_heads=heads,
        num_key_value_heads=size("num_key_value_heads", default=heads),
        head_dim=size("head_dim", default=max(1, hidden // heads)),
        vocab_size=size("vocab_size"),
        max_position_embeddings=size("max_position_embeddings", "n_positions", default=_LARGEST),
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", not gated)),
    )


_REDUCE_LATENCY = 8e-6
"""Seconds that one exchange between devices takes, however little it moves."""


class RooflineCost(CostModel):
    """The roofline of a step (Williams, Waterman and Patterson, 2009), for a model on a device.

    The linear layers, the head and the attention run one after the other. Each takes as long as its
    arithmetic or its memory traffic, whichever is longer, at the given efficiencies: the weights
    are read once a step, the cached keys and values once per sequence. Between ``tensor_parallel``
    devices, weights, arithmetic and cache are divided, and each layer adds two exchanges of the
    hidden states. Copies go through the device's memory, swaps over its link to the host: of each
    block the keys and the values of each layer, in one transfer each. Above all that, every step
    takes ``step_overhead``.

    Of the settings it reads ``block_size``, ``dtype`` (``auto``: 16 bit), ``kv_cache_dtype`` and
    ``kv_cache_memory``.

    Raises:
        SettingsError: the device or the model is unknown, or the model does not fit.
    """

    def __init__(self, options: RooflineSettings, context: CostModelContext, /) -> None:
        self._options = options
        self._shape = shape = model_shape(options.model)
        self._device = chip = device(options.device)
        self._memory = context.settings.kv_cache_memory
        degree = options.tensor_parallel
        width = 4 if context.settings.dtype == "float32" else 2
        cached_width = width if context.settings.kv_cache_dtype == "auto" else 1
        peak = chip.flops_32 if width == 4 else chip.flops_16
        flops = degree * peak * options.compute_efficiency
        bandwidth = degree * chip.bandwidth * options.memory_efficiency
        self._weight_bytes = width * shape.weights
        self._token_bytes = cached_width * shape.cached_numbers_per_token
        self._least_seconds = options.step_overhead or 1e-9
        self._layers = _Part(shape.layer_weights, width, flops, bandwidth)
        self._head = _Part(shape.head_weights, width, flops, bandwidth)
        self._seconds_per_pair = shape.operations_per_pair / flops
        self._seconds_per_cached = self._token_bytes / bandwidth
        block_bytes = self._token_bytes * context.settings.block_size
        self._copy_seconds = 2 * block_bytes / bandwidth
        copies = 2 * shape.num_hidden_layers * options.copy_latency
        self._swap_seconds = copies + block_bytes / (degree * chip.host_bandwidth)
        self._exchanges = 2 * shape.num_hidden_layers if degree > 1 else 0
        moved = 2 * (degree - 1) / degree * width * shape.hidden_size  # of a ring, per token
        self._exchange_seconds = moved / chip.interconnect

    def seconds(self, work: StepWork, /) -> float:
        seconds = self._least_seconds
        seconds += self._copy_seconds * work.copied_blocks
        seconds += self._swap_seconds * work.swapped_blocks
        tokens = work.prefill_tokens + work.decode_sequences
        if not tokens:
            return seconds
        seconds += self._layers.seconds(tokens)
        if self._exchanges:
            seconds += self._exchanges * (_REDUCE_LATENCY + self._exchange_seconds * tokens)
        if work.sampled_rows:
            seconds += self._head.seconds(work.sampled_rows)
        per_pair, per_cached = self._seconds_per_pair, self._seconds_per_cached
        cached = work.prefill_context + work.prefill_tokens
        seconds += max(per_pair * work.prefill_pairs, per_cached * cached)
        return seconds + max(per_pair, per_cached) * (work.decode_context + work.decode_sequences)

    def num_blocks(self, block_size: int, /) -> int | None:
        options, chip = self._options, self._device
        free = options.tensor_parallel * options.memory_share * chip.memory_bytes
        free -= self._weight_bytes
        if free <= 0:
            raise SettingsError(
                f"cost_model: {options.model} takes {self._weight_bytes / 2**30:.1f} GiB, and "
                f"{options.tensor_parallel} x {options.device} offers "
                f"{options.tensor_parallel * options.memory_share * chip.memory_bytes / 2**30:.1f}"
                " GiB; raise cost_model.tensor_parallel or choose a larger device"
            )
        if isinstance(self._memory, float):
            free *= self._memory
        elif self._memory is not None:
            free = min(free, self._memory)
        return max(1, int(free / (self._token_bytes * block_size)))

    @property
    def max_model_len(self) -> int | None:
        return self._shape.max_position_embeddings


class _Part:
    """A part of a model that every one of its rows is multiplied by."""

    def __init__(self, weights: int, width: int, flops: float, bandwidth: float) -> None:
        self._least = width * weights / bandwidth
        self._per_row = 2 * weights / flops

    def seconds(self, rows: int) -> float:
        """Return the time of the arithmetic, or of reading the weights."""
        return max(self._least, self._per_row * rows)
