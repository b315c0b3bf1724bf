"""Architectures of GGUF files that are read, with their values by the names of ``config.json``.

llama.cpp's conversion stores the weights of some of them in another form than transformers: of
``llama``, the rows of query and key lie in the order of a rotary embedding that rotates neighbours;
the norms of ``gemma`` are stored with the 1 that the model adds to them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paged_backends.checkpoint.gguf.header import GgufHeader, Metadata
from paged_backends.checkpoint.json_file import MAX_INTEGER, is_integer
from paged_core.errors import CheckpointError, UnsupportedModel
from paged_core.field_rules import shown

Config = dict[str, Any]

DIVISORS = "rope_freqs.weight"
"""Not a weight, but a part of the configuration."""

_EMBEDDING = "token_embd.weight"
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<EOT>"),
    *("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_utterance>", "[EOS]", "[EOT]"),
)
"""Tokens that end an answer whatever a file says, as in llama.cpp."""

_NEUTRAL: Mapping[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "attention.shared_kv_layers": 0,
    "embedding_scale": 0,
    "expert_count": 0,
    "logit_scale": 0,
    "residual_scale": 0,
    "rope.scaling.attn_factor": 1,
    "use_parallel_residual": False,
}
"""Values that say that a model lacks a feature that is not covered."""

_WITHOUT_EFFECT = (
    *("vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("expert_used_count", "tensor_data_layout", "decoder_start_token_id"),
)
"""Values that repeat what tensors say, belong to features that :data:`_NEUTRAL` says are not there,
or tell how a model was made."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Differences between the files of one architecture and those of another."""

    model_type: str
    """Name of the architecture in transformers."""
    describe: Callable[[GgufHeader], Config]
    """Fields beyond those that all have."""
    interleaved: bool = False
    """Rows of query and key are those of pairs ``(2i, 2i + 1)``, not ``(i, i + head_dim / 2)``."""
    norm_offset: float = 0.0
    """Added to the weights of norms."""


def architecture_of(header: GgufHeader) -> Architecture:
    """Return the architecture of a file.

    Raises:
        UnsupportedModel: it is not covered.
        CheckpointError: the file does not name it.
    """
    name = header.metadata.text("general.architecture")
    if name not in _ARCHITECTURES:
        raise UnsupportedModel(
            f"GGUF files of {', '.join(_ARCHITECTURES)} are read, and {header.path} is of "
            f"{name[:50]!r}; take the model as safetensors"
        )
    return _ARCHITECTURES[name]


def config_of(header: GgufHeader) -> Config:
    """Return the configuration, with the names of ``config.json``.

    Raises:
        UnsupportedModel: the architecture, or a feature of the model, is not covered.
        CheckpointError: a value is missing, or of another type.
    """
    kind = header.metadata.text("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(
            f"{header.path} holds no model: its general.type is {shown(kind)}; set `model` to the "
            "file of the whole model"
        )
    architecture, keys = architecture_of(header), _keys(header)
    for name, neutral in _NEUTRAL.items():
        value = keys.any(name, neutral)
        if not isinstance(value, int | float) or value != neutral:
            raise UnsupportedModel(
                f"{header.path} describes a model with {keys.prefix}{name}, which is not covered; "
                "take the model as safetensors"
            )
    table = header.tensors.get(_EMBEDDING)
    described = architecture.describe(header)
    unknown = [name for name in keys.unread() if name not in _WITHOUT_EFFECT]
    if unknown:
        raise UnsupportedModel(
            f"{header.path} describes a model with {keys.prefix}{unknown[0][:100]}, which is not "
            "known and may change what is computed; take the model as safetensors"
        )
    return {
        "model_type": architecture.model_type,
        "dtype": _dtype(header),
        **({"vocab_size": table.shape[0]} if table else {}),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "eos_token_id": _end_tokens(header),
        **described,
    }


def _keys(header: GgufHeader) -> Metadata:
    """Return the values whose names begin with that of the architecture."""
    return header.metadata.within(f"{header.metadata.text('general.architecture')}.")


def _dtype(header: GgufHeader) -> str:
    """Return the dtype to compute in: that of the matrices, or bfloat16 if they are quantised."""
    types = {each.block_type.name for each in header.tensors.values() if len(each.shape) > 1}
    if types == {"F32"}:
        return "float32"
    return "float16" if types == {"F16"} else "bfloat16"


def _end_tokens(header: GgufHeader) -> list[int]:
    values, table = header.metadata.within("tokenizer.ggml."), header.tensors.get(_EMBEDDING)
    tokens = values.texts("tokens") if values.has("tokens") else ()
    most = (len(tokens) or (table.shape[0] if table else MAX_INTEGER)) - 1
    named = [f"{kind}_token_id" for kind in ("eos", "eot", "eom")]
    ids = [values.integer(name, least=0, most=most) for name in named if values.has(name)]
    if values.has("eos_token_ids"):
        ids += values.numbers("eos_token_ids")
        if not all(is_integer(each, 0, most) for each in ids):
            raise values.wrong("eos_token_ids", f"a list of whole numbers from 0 to {most}")
    ids += [tokens.index(token) for token in _ENDS if token in tokens]
    return sorted(set(ids))


# ---------------------------------------------------------------------- llama and its relatives


def _shape(header: GgufHeader) -> Config:
    """Return what all architectures but gpt2 have under the same names."""
    keys = _keys(header)
    heads = keys.integer("attention.head_count")
    hidden = keys.integer("embedding_length")
    width = keys.integer("attention.key_length", max(1, hidden // heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(name, width) != width:
            raise UnsupportedModel(
                f"{header.path} describes heads of {width} with {keys.prefix}{name} of "
                f"{keys.integer(name)}, which is not covered; take the model as safetensors"
            )
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": width,
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(header, width),
    }


def _rope_scaling(header: GgufHeader, width: int) -> Config | None:
    """Return how positions are scaled, as llama.cpp reads it: a factor needs no type, and has an
    older name."""
    keys = _keys(header)
    stated = [name for name in ("rope.scaling.factor", "rope.scale_linear") if keys.any(name, 0)]
    if len({keys.number(name) for name in stated}) > 1:
        raise keys.wrong(
            stated[0], f"the same as {keys.prefix}{stated[1]}, {keys.number(stated[1])}"
        )
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        return {"rope_type": kind}  # refused as such, by its name
    factor = keys.number(stated[0]) if stated and kind == "linear" else 1.0
    if DIVISORS in header.tensors:
        divisors = [factor * each for each in _divisors(header, width // 2)]
        return {"rope_type": "divided", "divisors": divisors}
    return None if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _divisors(header: GgufHeader, count: int) -> Sequence[float]:
    """Return what the frequencies of rotary embeddings are divided by, each by its own."""
    stored = header.tensors[DIVISORS]
    if stored.block_type.name != "F32" or stored.shape != (count,):
        raise CheckpointError(
            f"{DIVISORS} in {header.path} is not {count} numbers of F32; convert the model again"
        )
    with header.path.open("rb") as file:
        file.seek(stored.begin)
        return struct.unpack(f"<{count}f", file.read(stored.num_bytes))


def _llama(header: GgufHeader) -> Config:
    """Return the fields of a llama, or of a mistral: that is a llama with a window."""
    shape = _shape(header)
    if window := _keys(header).integer("attention.sliding_window", 0, least=0):
        return shape | {"model_type": "mistral", "sliding_window": window}
    return shape | {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
    }


def _qwen3(header: GgufHeader) -> Config:
    return _shape(header) | {"attention_bias": "blk.0.attn_q.bias" in header.tensors}


def _gemma2(header: GgufHeader) -> Config:
    keys, shape = _keys(header), _shape(header)
    return shape | {
        "query_pre_attn_scalar": _query_scalar(shape, largest=46),
        "sliding_window": keys.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0),
    }


def _gemma3(header: GgufHeader) -> Config:
    keys, shape = _keys(header), _shape(header)
    return shape | {
        "query_pre_attn_scalar": _query_scalar(shape, largest=62),
        "sliding_window": keys.integer("attention.sliding_window"),
        "sliding_window_pattern": keys.integer("attention.sliding_window_pattern", 6),
        "rope_theta": keys.number("rope.freq_base", 1e6),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": keys.optional("final_logit_softcapping"),
    }


def _query_scalar(shape: Config, largest: int) -> float:
    """Return what queries are divided by the root of, which no value of a file says.

    It is the width of a head, except in the largest model of the family, known by its layers.
    """
    if shape["num_hidden_layers"] == largest:
        return float(shape["hidden_size"] / shape["num_attention_heads"])
    return float(shape["head_dim"])


def _gpt2(header: GgufHeader) -> Config:
    keys = _keys(header)
    return {
        "n_embd": keys.integer("embedding_length"),
        "n_inner": keys.integer("feed_forward_length"),
        "n_layer": keys.integer("block_count"),
        "n_head": keys.integer("attention.head_count"),
        "n_positions": keys.integer("context_length"),
        "layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"),
    }


_ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", _llama, interleaved=True),
    "qwen2": Architecture("qwen2", _shape),
    "qwen3": Architecture("qwen3", _qwen3),
    "gemma": Architecture("gemma", _shape, norm_offset=1.0),
    "gemma2": Architecture("gemma2", _gemma2, norm_offset=1.0),
    "gemma3": Architecture("gemma3_text", _gemma3, norm_offset=1.0),
    "gpt2": Architecture("gpt2", _gpt2),
}
