"""Shapes of models: by name, or from a ``config.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.documents import parse_json, read_text


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
    num_experts: int = 0
    """Feed-forward parts of each layer, of which a token takes some; 0: there is one for all.
    ``intermediate_size`` is the width of one."""
    experts_per_token: int = 0
    sliding_window: int = 0
    """Tokens that the windowed layers attend to."""
    num_windowed_layers: int = 0
    norms_over_heads: bool = False
    """True if queries, and keys, of all heads are normed together, so that GPUs which share them
    have a sum to exchange."""

    @property
    def layer_weights(self) -> int:
        """Weights of the linear layers, all experts included."""
        query = self.num_attention_heads * self.head_dim
        cached = self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * (query + cached)
        return self.num_hidden_layers * attention + self.feed_forward_weights

    @property
    def feed_forward_weights(self) -> int:
        """Number of weights of feed-forward parts, in all layers."""
        each = (3 if self.gated else 2) * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * (self.num_experts or 1) * each

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


_FORM = re.compile(r"(-(instruct|chat|base|hf|bf16|fp8|nvfp4|fp4|int4|awq))+$")
"""Endings of names on the hub: what is trained further, or stored otherwise, keeps its shape."""


def _plain(name: str) -> str:
    """The name of a model without its owner and form: ``llama-3.1-8b``."""
    return _FORM.sub("", name.rpartition("/")[2].lower().removeprefix("meta-"))


def model_shape(name: str, published: Mapping[str, Path] = MappingProxyType({})) -> ModelShape:
    """Return the shape of a model by its name, from a ``config.json``, or from one in a folder.

    A name on the hub also stands for that of the model which it is a form of:
    ``meta-llama/Llama-3.1-8B-Instruct`` for ``llama-3.1-8b``.

    Args:
        published: further names, with the file of each.

    Raises:
        SettingsError: none is called that, or the file does not give a shape.
    """
    if name in SHAPES:
        return SHAPES[name]
    given = Path(name).expanduser()
    path = published.get(name) or (given if given.suffix == ".json" else given / "config.json")
    if not path.is_file() and (plain := _plain(name)) in SHAPES:
        return SHAPES[plain]
    if not path.is_file():
        path = {_plain(each): file for each, file in published.items()}.get(_plain(name), path)
    if not path.is_file():
        known = did_you_mean(name, [*SHAPES, *published])
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

    unserved = sorted(key for key in _OTHER_ATTENTION if config.get(key))
    if unserved:
        raise ValueError(f"{unserved[0]}: its attention is not that over keys and values per head")
    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    layers = size("num_hidden_layers", "n_layer")
    kind = config.get("model_type")
    gated = kind not in _UNGATED
    has_experts = any(config.get(key) for key in _EXPERTS)
    width = size("intermediate_size", "ffn_dim", "n_inner", default=4 * hidden)
    if has_experts:
        width = size("moe_intermediate_size", default=width)
        odd = [key for key in _UNEVEN_EXPERTS if config.get(key) not in (None, 0, 1, [], False)]
        if odd:
            raise ValueError(f"{odd[0]}: not all of its layers have the same experts and no more")
    return ModelShape(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=heads,
        num_key_value_heads=size("num_key_value_heads", default=heads),
        head_dim=size("head_dim", default=max(1, hidden // heads)),
        vocab_size=size("vocab_size"),
        max_position_embeddings=size("max_position_embeddings", "n_positions", default=_LARGEST),
        gated=gated,
        tied=bool(config.get("tie_word_embeddings", not gated)),
        num_experts=size(*_EXPERTS) if has_experts else 0,
        experts_per_token=size("num_experts_per_tok") if has_experts else 0,
        norms_over_heads=config.get("qk_norm_type") == "per_layer",
        **_windows(config, layers),
    )


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_UNEVEN_EXPERTS = (
    *("first_k_dense_replace", "mlp_only_layers", "decoder_sparse_step", "moe_layer_freq"),
    *("n_shared_experts", "shared_expert_intermediate_size", "shared_intermediate_size"),
)
_OTHER_ATTENTION = (
    *("kv_lora_rank", "q_lora_rank", "linear_num_value_heads", "full_attention_interval"),
    *("index_topk", "ssm_cfg", "mamba_num_heads", "hybrid_override_pattern", "block_configs"),
)
"""Keys of a ``config.json`` of models whose layers keep other states than keys and values."""


def _windows(config: Mapping[str, Any], layers: int) -> dict[str, int]:
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not isinstance(window, int) or config.get("use_sliding_window") is False:
        return {}
    if not isinstance(kinds, list):
        return {"sliding_window": window, "num_windowed_layers": layers}
    return {"sliding_window": window, "num_windowed_layers": kinds.count("sliding_attention")}
