"""The shape of a decoder-only model, as far as it determines the cost of its steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_core.config.documents import parse_json, read_text
from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Whether the feed-forward layer has three matrices; otherwise it has two."""
    tied: bool = False
    """Whether the head shares the weights of the embedding."""

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


def _shape(
    layers: int,
    hidden: int,
    feed_forward: int,
    heads: int,
    *,
    cached_heads: int | None = None,
    head_dim: int | None = None,
    vocabulary: int = 32_000,
    longest: int = 4096,
    gated: bool = True,
    tied: bool = False,
) -> ModelShape:
    return ModelShape(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_attention_heads=heads,
        num_key_value_heads=cached_heads or heads,
        head_dim=head_dim or hidden // heads,
        vocab_size=vocabulary,
        max_position_embeddings=longest,
        gated=gated,
        tied=tied,
    )


SHAPES: Mapping[str, ModelShape] = {
    "opt-13b": _shape(40, 5120, 20480, 40, vocabulary=50_272, longest=2048, gated=False, tied=True),
    "llama-2-7b": _shape(32, 4096, 11008, 32),
    "llama-2-13b": _shape(40, 5120, 13824, 40),
    "llama-3.1-8b": _shape(
        32, 4096, 14336, 32, cached_heads=8, vocabulary=128_256, longest=131_072
    ),
    "llama-3.1-70b": _shape(
        80, 8192, 28672, 64, cached_heads=8, vocabulary=128_256, longest=131_072
    ),
    "qwen3-0.6b": _shape(
        *(28, 1024, 3072, 16),
        cached_heads=8,
        head_dim=128,
        vocabulary=151_936,
        longest=40_960,
        tied=True,
    ),
    "qwen3-8b": _shape(
        36, 4096, 12288, 32, cached_heads=8, head_dim=128, vocabulary=151_936, longest=40_960
    ),
    "mistral-7b": _shape(32, 4096, 14336, 32, cached_heads=8, longest=32_768),
    "smollm-135m": _shape(
        30, 576, 1536, 9, cached_heads=3, vocabulary=49_152, longest=2048, tied=True
    ),
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
