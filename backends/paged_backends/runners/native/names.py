"""Names of the weights in a checkpoint of each family, as transformers and llama.cpp write them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paged_backends.checkpoint.folder import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """Names of modules, without ``.weight`` and ``.bias``; those of a layer without its prefix."""

    embedding: str = "model.embed_tokens"
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers"
    attention_norm: str = "input_layernorm"
    query_key_value: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """One name if the checkpoint stores them concatenated."""
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    attention_output: str = "self_attn.o_proj"
    attention_output_norm: str = "post_attention_layernorm"
    """If outputs are normalised."""
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    mlp_output_norm: str = "post_feedforward_layernorm"
    transposed: bool = False
    """Weights of linear layers are stored as [inputs, outputs]."""


_NAMES = {
    "gemma2": WeightNames(mlp_norm="pre_feedforward_layernorm"),
    "gemma3_text": WeightNames(mlp_norm="pre_feedforward_layernorm"),
    "opt": WeightNames(
        embedding="model.decoder.embed_tokens",
        positions="model.decoder.embed_positions",
        project_in="model.decoder.project_in",
        project_out="model.decoder.project_out",
        final_norm="model.decoder.final_layer_norm",
        layers="model.decoder.layers",
        attention_norm="self_attn_layer_norm",
        attention_output="self_attn.out_proj",
        mlp_norm="final_layer_norm",
        up="fc1",
        down="fc2",
    ),
    "gpt2": WeightNames(
        embedding="transformer.wte",
        positions="transformer.wpe",
        final_norm="transformer.ln_f",
        layers="transformer.h",
        attention_norm="ln_1",
        query_key_value=("attn.c_attn",),
        attention_output="attn.c_proj",
        mlp_norm="ln_2",
        up="mlp.c_fc",
        down="mlp.c_proj",
        transposed=True,
    ),
}


_GGUF = WeightNames(
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layers="blk",
    attention_norm="attn_norm",
    query_key_value=("attn_q", "attn_k", "attn_v"),
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    attention_output="attn_output",
    attention_output_norm="post_attention_norm",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    mlp_output_norm="post_ffw_norm",
)
_GGUF_GPT2 = replace(_GGUF, positions="position_embd", query_key_value=("attn_qkv",))


def weight_names(checkpoint: Checkpoint) -> WeightNames:
    """Return the names in a checkpoint; most are those of Llama."""
    if checkpoint.gguf is not None:
        return _GGUF_GPT2 if checkpoint.model_type == "gpt2" else _GGUF
    return _NAMES.get(checkpoint.model_type) or WeightNames()
