"""Which families of models the decoder covers, and how each describes itself in ``config.json``.

Defaults are those of the transformers library, which leaves out of the file what has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paged_backends.checkpoint import Checkpoint
from paged_backends.native.config import Activation, AttentionConfig, DecoderConfig, Rope
from paged_backends.native.config_fields import ConfigFields
from paged_core.errors import UnsupportedModel

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_SLIDING, _FULL = "sliding_attention", "full_attention"


def decoder_config(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> DecoderConfig:
    """Describe the model of ``checkpoint``.

    Raises:
        UnsupportedModel: the decoder lacks a feature of the model; the message names it.
        CheckpointError: the configuration contradicts itself.
    """
    kind = checkpoint.model_type
    describe = _FAMILIES.get(kind)
    if describe is None:
        raise UnsupportedModel(
            f"the native runner covers {', '.join(_FAMILIES)}, and {checkpoint.folder} is a {kind}"
        )
    if trust_remote_code and "auto_map" in checkpoint.config:
        raise _lacking(checkpoint, "code that comes with the checkpoint")
    for field, feature in (
        ("quantization_config", "quantised weights"),
        ("use_bidirectional_attention", "attention in both directions"),
        ("add_cross_attention", "cross-attention"),
        ("is_encoder_decoder", "an encoder"),
    ):
        if checkpoint.config.get(field):
            raise _lacking(checkpoint, feature)
    return describe(ConfigFields(checkpoint))


def _lacking(checkpoint: Checkpoint, feature: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{checkpoint.model_type} of {checkpoint.folder} cannot be served by the native runner, "
        f"which lacks {feature}; set runner to auto or transformers"
    )


# ---------------------------------------------------------------------- llama and its relatives


def _llama(fields: ConfigFields) -> DecoderConfig:
    return _llama_like(
        fields,
        bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )


def _mistral(fields: ConfigFields) -> DecoderConfig:
    if fields.has("layer_types"):
        raise _lacking(fields.checkpoint, "layers of several types in a mistral")
    window = fields.optional_integer("sliding_window", 4096)
    return _llama_like(
        fields, num_kv_heads=8, windows=lambda _: window, max_length=4096 * 32, intermediate=14336
    )


def _qwen2(fields: ConfigFields) -> DecoderConfig:
    return _llama_like(
        fields,
        num_kv_heads=32,
        windows=_qwen_windows(fields),
        max_length=32768,
        intermediate=22016,
        vocab_size=151936,
        eos=None,
        bias=True,
        output_bias=False,
    )


def _qwen3(fields: ConfigFields) -> DecoderConfig:
    return _llama_like(
        fields,
        num_kv_heads=32,
        head_dim=128,
        windows=_qwen_windows(fields),
        max_length=32768,
        intermediate=22016,
        vocab_size=151936,
        eos=None,
        bias=fields.flag("attention_bias", False),
        norm_queries_and_keys=True,
    )


def _qwen_windows(fields: ConfigFields) -> Callable[[int], int | None]:
    window = fields.optional_integer("sliding_window", 4096)
    if not fields.flag("use_sliding_window", False):
        window = None
    first = fields.any("max_window_layers", 28)
    types = _layer_types(fields, lambda index: _SLIDING if window and index >= first else _FULL)
    return lambda index: window if types[index] == _SLIDING else None


def _llama_like(
    fields: ConfigFields,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    windows: Callable[[int], int | None] = lambda _: None,
    max_length: int = 2048,
    intermediate: int = 11008,
    vocab_size: int = 32000,
    eos: int | None = 2,
    bias: bool = False,
    output_bias: bool | None = None,
    **features: Any,
) -> DecoderConfig:
    """Describe a model of llama's shape; the arguments are a family's defaults and features."""
    hidden = fields.integer("hidden_size", 4096)
    num_heads = fields.integer("num_attention_heads", 32)
    heads = _heads(fields, num_heads, num_kv_heads or num_heads)
    width = _head_dim(fields, hidden, num_heads, head_dim)
    rope = _rope(fields, _rope_parameters(fields), fields.number("rope_theta", 10000.0))
    count = fields.integer("num_hidden_layers", 32)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", intermediate),
        vocab_size=fields.integer("vocab_size", vocab_size),
        num_heads=num_heads,
        num_kv_heads=heads,
        head_dim=width,
        layers=tuple(
            AttentionConfig(scale=width**-0.5, rope=rope, sliding_window=windows(index))
            for index in range(count)
        ),
        max_model_len=fields.integer("max_position_embeddings", max_length),
        activation=_activation(fields, "hidden_act", "silu"),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        query_bias=bias,
        output_bias=bias if output_bias is None else output_bias,
        embedding_size=hidden,
        tied=fields.flag("tie_word_embeddings", False),
        eos_token_ids=fields.token_ids(eos),
        **features,
    )


# ---------------------------------------------------------------------- gemma


def _gemma(fields: ConfigFields) -> DecoderConfig:
    name = fields.text("hidden_act", "gelu_pytorch_tanh")
    # the first releases say gelu and mean its approximation
    activation = _activation(fields, "hidden_act", "gelu_pytorch_tanh")
    rope = _rope(fields, _rope_parameters(fields), fields.number("rope_theta", 10000.0))
    width = fields.integer("head_dim", 256)
    return _gemma_like(
        fields,
        defaults=(3072, 24576, 28, 16, 16, 256000, 8192),
        layer=lambda _: AttentionConfig(scale=width**-0.5, rope=rope),
        activation="gelu_tanh" if name == "gelu" else activation,
    )


def _gemma2(fields: ConfigFields) -> DecoderConfig:
    rope = _rope(fields, _rope_parameters(fields), fields.number("rope_theta", 10000.0))
    types = _layer_types(fields, lambda index: _FULL if index % 2 else _SLIDING, default_count=26)
    window = fields.optional_integer("sliding_window", 4096)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    cap = fields.optional_number("attn_logit_softcapping", 50.0)
    return _gemma_like(
        fields,
        defaults=(2304, 9216, 26, 8, 4, 256000, 8192),
        layer=lambda index: AttentionConfig(
            scale=scale,
            rope=rope,
            sliding_window=window if types[index] == _SLIDING else None,
            soft_cap=cap,
        ),
        activation=_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        norm_outputs=True,
        logits_soft_cap=fields.optional_number("final_logit_softcapping", 30.0),
    )


def _gemma3(fields: ConfigFields) -> DecoderConfig:
    every = fields.any("sliding_window_pattern", 6)
    types = _layer_types(
        fields, lambda index: _SLIDING if (index + 1) % every else _FULL, default_count=26
    )
    window = fields.optional_integer("sliding_window", 4096)
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    given = fields.mapping("rope_parameters") or {}
    full = {**(given.get(_FULL) or {}), **(fields.mapping("rope_scaling") or {})}
    ropes = {
        _FULL: _rope(fields, full, fields.number("rope_theta", 1e6)),
        _SLIDING: _rope(
            fields, given.get(_SLIDING) or {}, fields.number("rope_local_base_freq", 10000.0)
        ),
    }
    return _gemma_like(
        fields,
        defaults=(2304, 9216, 26, 8, 4, 262208, 131072),
        layer=lambda index: AttentionConfig(
            scale=scale,
            rope=ropes[types[index]],
            sliding_window=window if types[index] == _SLIDING else None,
        ),
        activation=_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        norm_outputs=True,
        norm_queries_and_keys=True,
        logits_soft_cap=fields.optional_number("final_logit_softcapping", None),
    )


def _gemma_like(
    fields: ConfigFields,
    *,
    defaults: tuple[int, int, int, int, int, int, int],
    layer: Callable[[int], AttentionConfig],
    **features: Any,
) -> DecoderConfig:
    hidden_size, intermediate, count, num_heads, kv_heads, vocab_size, length = defaults
    hidden = fields.integer("hidden_size", hidden_size)
    heads = fields.integer("num_attention_heads", num_heads)
    bias = fields.flag("attention_bias", False)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", intermediate),
        vocab_size=fields.integer("vocab_size", vocab_size),
        num_heads=heads,
        num_kv_heads=_heads(fields, heads, kv_heads),
        head_dim=fields.integer("head_dim", 256),
        layers=tuple(layer(index) for index in range(fields.integer("num_hidden_layers", count))),
        max_model_len=fields.integer("max_position_embeddings", length),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        norm_weight_offset=1.0,
        query_bias=bias,
        output_bias=bias,
        embedding_size=hidden,
        embedding_scale=hidden**0.5,
        tied=fields.flag("tie_word_embeddings", True),
        eos_token_ids=fields.token_ids(1),
        **features,
    )


# ---------------------------------------------------------------------- learned positions


def _opt(fields: ConfigFields) -> DecoderConfig:
    hidden = fields.integer("hidden_size", 768)
    heads = fields.integer("num_attention_heads", 12)
    width = _head_dim(fields, hidden, heads, None, given=False)
    first = fields.flag("do_layer_norm_before", True)
    bias = fields.flag("enable_bias", True)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("ffn_dim", 3072),
        vocab_size=fields.integer("vocab_size", 50272),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width,
        layers=(AttentionConfig(scale=width**-0.5),) * fields.integer("num_hidden_layers", 12),
        max_model_len=fields.integer("max_position_embeddings", 2048),
        activation=_activation(fields, "activation_function", "relu"),
        norm="layer",
        norm_eps=1e-5,
        norm_has_weights=fields.flag("layer_norm_elementwise_affine", True),
        norm_first=first,
        norm_at_end=first and not fields.flag("_remove_final_layer_norm", False),
        gated=False,
        query_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        embedding_size=fields.integer("word_embed_proj_dim", hidden),
        learned_positions=2,
        tied=fields.flag("tie_word_embeddings", True),
        eos_token_ids=fields.token_ids(2),
    )


def _gpt2(fields: ConfigFields) -> DecoderConfig:
    def named(own: str, common: str, default: int) -> int:
        return fields.integer(own if fields.has(own) else common, default)

    hidden = named("n_embd", "hidden_size", 768)
    heads = named("n_head", "num_attention_heads", 12)
    width = _head_dim(fields, hidden, heads, None, given=False)
    scale = width**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
    by_layer = fields.flag("scale_attn_by_inverse_layer_idx", False)
    return DecoderConfig(
        hidden_size=hidden,
        intermediate_size=fields.integer("n_inner", 4 * hidden),
        vocab_size=fields.integer("vocab_size", 50257),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width,
        layers=tuple(
            AttentionConfig(scale=scale / (index + 1) if by_layer else scale)
            for index in range(named("n_layer", "num_hidden_layers", 12))
        ),
        max_model_len=named("n_positions", "max_position_embeddings", 1024),
        activation=_activation(fields, "activation_function", "gelu_new"),
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        gated=False,
        query_bias=True,
        output_bias=True,
        mlp_bias=True,
        embedding_size=hidden,
        learned_positions=0,
        tied=fields.flag("tie_word_embeddings", True),
        eos_token_ids=fields.token_ids(50256),
    )


# ---------------------------------------------------------------------- single fields


def _heads(fields: ConfigFields, num_heads: int, default: int) -> int:
    count = fields.integer("num_key_value_heads", default)
    if num_heads % count:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}")
    return count


def _head_dim(
    fields: ConfigFields, hidden: int, num_heads: int, default: int | None, *, given: bool = True
) -> int:
    if given and (default is not None or fields.has("head_dim")):
        return fields.integer("head_dim", default or 1)
    if hidden % num_heads:
        raise fields.wrong("num_attention_heads", f"a divisor of the hidden size, {hidden}")
    return hidden // num_heads


def _activation(fields: ConfigFields, name: str, default: str) -> Activation:
    value = fields.text(name, default)
    if value not in _ACTIVATIONS:
        raise _lacking(fields.checkpoint, f"the activation {value!r}")
    return _ACTIVATIONS[value]


def _layer_types(
    fields: ConfigFields, default: Callable[[int], str], default_count: int = 32
) -> Sequence[str]:
    count = fields.integer("num_hidden_layers", default_count)
    types = fields.any("layer_types")
    if types is None:
        return [default(index) for index in range(count)]
    if not isinstance(types, list) or len(types) < count:
        raise fields.wrong("layer_types", f"a list of {count} words")
    others = sorted(set(map(str, types)) - {_SLIDING, _FULL})
    if others:
        raise _lacking(fields.checkpoint, f"layers of the type {others[0]}")
    return types


def _rope_parameters(fields: ConfigFields) -> Mapping[str, Any]:
    return fields.mapping("rope_scaling") or fields.mapping("rope_parameters") or {}


def _rope(fields: ConfigFields, given: Mapping[str, Any], theta: float) -> Rope:
    """Describe rotary embeddings, in the new form or in that of older configurations."""
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise _lacking(fields.checkpoint, f"rotary embeddings scaled by {kind!r}")
    share = given.get("partial_rotary_factor", fields.any("partial_rotary_factor"))
    if share not in (None, 1, 1.0):
        raise _lacking(fields.checkpoint, "rotary embeddings over part of a head")

    def number(name: str) -> float:
        value = given.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise fields.wrong("rope_parameters", f"an object with a number as {name!r}")
        return float(value)

    theta = number("rope_theta") if given.get("rope_theta") is not None else theta
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, scaling="linear", factor=number("factor"))
    length = given.get("original_max_position_embeddings")
    return Rope(
        theta=theta,
        scaling="llama3",
        factor=number("factor"),
        low_freq_factor=number("low_freq_factor"),
        high_freq_factor=number("high_freq_factor"),
        original_length=int(number("original_max_position_embeddings"))
        if length is not None
        else fields.integer("max_position_embeddings", 2048),
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
