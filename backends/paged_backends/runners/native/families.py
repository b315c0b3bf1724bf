"""The families of models that the decoder covers, as each describes itself in ``config.json``.

Defaults are those of the transformers library, which leaves out of the file what has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from paged_backends.checkpoint.config_fields import ConfigFields, refuse_biased
from paged_backends.checkpoint.end_tokens import end_tokens
from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.runners.native.config import Activation, AttentionConfig, DecoderConfig, Rope
from paged_backends.runners.native.shared_fields import (
    FULL,
    SLIDING,
    activation_of,
    check_layer_types,
    head_dim_of,
    lacking,
    layer_types_of,
    num_kv_heads_of,
    rope_of,
    rope_parameters_of,
)
from paged_core.errors import UnsupportedModel

_BOTH = "use_bidirectional_attention"
_WITHIN = ("text_config", "text_encoder", "decoder", "generator")
"""Fields in which the library looks for another configuration."""


def decoder_config(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> DecoderConfig:
    """Describe the model of ``checkpoint``.

    Raises:
        UnsupportedModel: the decoder lacks a feature of the model; the message names it.
        CheckpointError: the configuration contradicts itself.
    """
    kind = checkpoint.model_type
    describe = _FAMILIES.get(kind)
    refuse_biased(checkpoint)
    if describe is None:
        raise UnsupportedModel(
            f"runners native and onnxruntime cover {', '.join(_FAMILIES)}, and, by its model_type, "
            f"{checkpoint.config_path} is of type {kind}",
            "; set runner to auto or transformers",
        )
    if trust_remote_code and "auto_map" in checkpoint.config:
        raise lacking(checkpoint, "code that comes with the checkpoint")
    config, both = checkpoint.config, "attention in both directions"
    for is_there, feature, elsewhere in (
        (config.get(_BOTH), f"{both}, by its {_BOTH}", False),
        (not config.get("is_causal", True), f"{both}, by its is_causal", False),  # null as well
        (config.get("is_encoder_decoder"), "an encoder", False),
        (config.get("add_cross_attention"), "cross-attention", True),
        (config.get("per_layer_config"), "layers with a configuration of their own", True),
        *((config.get(name) is not None, f"a {name} of its own", True) for name in _WITHIN),
    ):
        if is_there:
            raise lacking(checkpoint, feature, elsewhere=elsewhere)
    fields = ConfigFields(checkpoint)
    described = describe(fields)
    check_layer_types(fields, described.layers)
    return described


# ---------------------------------------------------------------------- rotary embeddings


class _Defaults(NamedTuple):
    """Values of a family where a configuration says nothing."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int | None
    """``None``: the hidden size, divided by the number of heads."""
    vocab_size: int
    length: int
    eos: int | None


_DEFAULTS = {
    "llama": _Defaults(4096, 11008, 32, 32, 0, None, 32000, 2048, 2),
    "mistral": _Defaults(4096, 14336, 32, 32, 8, None, 32000, 131072, 2),
    "qwen2": _Defaults(4096, 22016, 32, 32, 32, None, 151936, 32768, None),
    "qwen3": _Defaults(4096, 22016, 32, 32, 32, 128, 151936, 32768, None),
    "gemma": _Defaults(3072, 24576, 28, 16, 16, 256, 256000, 8192, 1),
    "gemma2": _Defaults(2304, 9216, 26, 8, 4, 256, 256000, 8192, 1),
    "gemma3_text": _Defaults(2304, 9216, 26, 8, 4, 256, 262208, 131072, 1),
}
"""Families with RMSNorm, rotary embeddings and a gated feed-forward."""

Windows = Callable[[int], int | None]
"""The sliding window of a layer, by its number."""


def _llama(fields: ConfigFields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    mlp_bias = fields.flag("mlp_bias", False)
    return _rotated(fields, query_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def _mistral(fields: ConfigFields) -> DecoderConfig:
    if fields.has("layer_types"):
        raise lacking(fields.checkpoint, "layers of several types in a mistral")
    window = fields.optional_integer("sliding_window", 4096)
    return _rotated(fields, lambda _: window)


def _qwen2(fields: ConfigFields) -> DecoderConfig:
    return _rotated(fields, _qwen_windows(fields), query_bias=True)


def _qwen3(fields: ConfigFields) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    return _rotated(
        fields,
        _qwen_windows(fields),
        query_bias=bias,
        output_bias=bias,
        norm_queries_and_keys=True,
    )


def _qwen_windows(fields: ConfigFields) -> Windows:
    window = fields.optional_integer("sliding_window", 4096)
    if not fields.flag("use_sliding_window", False):
        window = None
    first = fields.integer("max_window_layers", 28, least=0)
    types = layer_types_of(fields, lambda index: SLIDING if window and index >= first else FULL)
    return lambda index: window if types[index] == SLIDING else None


def _gemma(fields: ConfigFields) -> DecoderConfig:
    name = fields.text("hidden_act", "gelu_pytorch_tanh")
    # the first releases say gelu and mean its approximation
    activation = activation_of(fields, "hidden_act", "gelu_pytorch_tanh")
    return _gemma_like(fields, activation="gelu_tanh" if name == "gelu" else activation)


def _gemma2(fields: ConfigFields) -> DecoderConfig:
    types = layer_types_of(fields, lambda index: FULL if index % 2 else SLIDING, default_count=26)
    return _gemma_like(
        fields,
        _typed_windows(fields, types),
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        soft_cap=fields.optional_number("attn_logit_softcapping", 50.0),
        activation=activation_of(fields, "hidden_activation", "gelu_pytorch_tanh"),
        norm_outputs=True,
        logits_soft_cap=fields.optional_number("final_logit_softcapping", 30.0),
    )


def _gemma3(fields: ConfigFields) -> DecoderConfig:
    every = fields.integer("sliding_window_pattern", 6)
    types = layer_types_of(
        fields, lambda index: SLIDING if (index + 1) % every else FULL, default_count=26
    )
    given, scaling = fields.mapping("rope_parameters"), fields.mapping("rope_scaling") or {}
    if given is None:  # where the library reads rope_type alone, not the older word for it
        given = {kind: {"rope_type": "default"} for kind in (FULL, SLIDING)}
    parts, length = fields.part("rope_parameters", given), _length(fields)
    full = parts.part(FULL, {**(parts.mapping(FULL) or {}), **scaling})
    local = parts.part(SLIDING, parts.mapping(SLIDING) or {})
    for path in parts.unread():
        raise lacking(fields.checkpoint, f"what {path} may mean for rotary embeddings")
    ropes = {
        FULL: rope_of(fields, full, fields.number("rope_theta", 1e6), length),
        SLIDING: rope_of(fields, local, fields.number("rope_local_base_freq", 10000.0), length),
    }
    return _gemma_like(
        fields,
        _typed_windows(fields, types),
        ropes=lambda index: ropes[types[index]],
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        activation=activation_of(fields, "hidden_activation", "gelu_pytorch_tanh"),
        norm_outputs=True,
        norm_queries_and_keys=True,
        logits_soft_cap=fields.optional_number("final_logit_softcapping", None),
    )


def _typed_windows(fields: ConfigFields, types: Sequence[str]) -> Windows:
    window = fields.integer("sliding_window", 4096) if SLIDING in types else None
    return lambda index: window if types[index] == SLIDING else None


def _length(fields: ConfigFields) -> int:
    default = _DEFAULTS[fields.checkpoint.model_type].length
    return fields.integer("max_position_embeddings", default)


def _gemma_like(
    fields: ConfigFields, windows: Windows = lambda _: None, **features: Any
) -> DecoderConfig:
    bias = fields.flag("attention_bias", False)
    config = _rotated(
        fields,
        windows,
        tied=True,
        norm_weight_offset=1.0,
        query_bias=bias,
        output_bias=bias,
        **features,
    )
    return replace(config, embedding_scale=config.hidden_size**0.5)


def _rotated(
    fields: ConfigFields,
    windows: Windows = lambda _: None,
    *,
    ropes: Callable[[int], Rope] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    activation: Activation | None = None,
    tied: bool = False,
    **features: Any,
) -> DecoderConfig:
    """Describe a model of one of these families.

    Args:
        ropes: of each layer; ``None``: all have that of the configuration.
        scale: of scores; ``None``: that of the width of a head.
        activation: ``None``: as the configuration says, or silu.
        tied: the default of ``tie_word_embeddings``.
        features: other fields, and those that differ.
    """
    default = _DEFAULTS[fields.checkpoint.model_type]
    hidden = fields.integer("hidden_size", default.hidden_size)
    heads = fields.integer("num_attention_heads", default.num_heads)
    width = head_dim_of(fields, hidden, heads, default.head_dim)
    if ropes is None:
        theta = fields.number("rope_theta", 10000.0)
        rope = rope_of(fields, rope_parameters_of(fields), theta, _length(fields))
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", default.intermediate_size),
        vocab_size=fields.integer("vocab_size", default.vocab_size),
        num_heads=heads,
        num_kv_heads=num_kv_heads_of(fields, heads, default.num_kv_heads or heads),
        head_dim=width,
        layers=tuple(
            AttentionConfig(
                scale=width**-0.5 if scale is None else scale,
                rope=rope if ropes is None else ropes(index),
                sliding_window=windows(index),
                soft_cap=soft_cap,
            )
            for index in range(fields.num_layers("num_hidden_layers", default.num_layers))
        ),
        max_model_len=_length(fields),
        activation=activation or activation_of(fields, "hidden_act", "silu"),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        embedding_size=hidden,
        tied=fields.flag("tie_word_embeddings", tied),
        eos_token_ids=end_tokens(fields.checkpoint, default.eos),
        **features,
    )


# ---------------------------------------------------------------------- learned positions


def _opt(fields: ConfigFields) -> DecoderConfig:
    hidden = fields.integer("hidden_size", 768)
    heads = fields.integer("num_attention_heads", 12)
    width = head_dim_of(fields, hidden, heads, None, given=False)
    first = fields.flag("do_layer_norm_before", True)
    bias = fields.flag("enable_bias", True)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("ffn_dim", 3072),
        vocab_size=fields.integer("vocab_size", 50272),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width,
        layers=(AttentionConfig(scale=width**-0.5),) * fields.num_layers("num_hidden_layers", 12),
        max_model_len=fields.integer("max_position_embeddings", 2048),
        activation=activation_of(fields, "activation_function", "relu"),
        norm="layer",
        norm_eps=1e-5,
        norm_has_weights=fields.flag("layer_norm_elementwise_affine", True),
        norm_first=first,
        norm_at_end=first and not fields.flag("_remove_final_layer_norm", False),
        gated=False,
        query_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        embedding_size=fields.optional_integer("word_embed_proj_dim", None) or hidden,
        learned_positions=2,
        tied=fields.flag("tie_word_embeddings", True),
        eos_token_ids=end_tokens(fields.checkpoint, 2),
    )


def _gpt2(fields: ConfigFields) -> DecoderConfig:
    def named(own: str, common: str, default: int) -> int:
        return fields.integer(own if fields.has(own) else common, default)

    hidden = named("n_embd", "hidden_size", 768)
    heads = named("n_head", "num_attention_heads", 12)
    width = head_dim_of(fields, hidden, heads, None, given=False)
    scale = width**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    count = fields.num_layers("n_layer" if fields.has("n_layer") else "num_hidden_layers", 12)
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.optional_integer("n_inner", None) or 4 * hidden,
        vocab_size=fields.integer("vocab_size", 50257),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width,
        layers=tuple(
            AttentionConfig(scale=scale / (index + 1) if by_layer else scale)
            for index in range(count)
        ),
        max_model_len=named("n_positions", "max_position_embeddings", 1024),
        activation=activation_of(fields, "activation_function", "gelu_new"),
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        gated=False,
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        embedding_size=hidden,
        learned_positions=0,
        tied=fields.flag("tie_word_embeddings", True),
        eos_token_ids=end_tokens(fields.checkpoint, 50256),
    )


_FAMILIES: dict[str, Callable[[ConfigFields], DecoderConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "opt": _opt,
    "gpt2": _gpt2,
}
