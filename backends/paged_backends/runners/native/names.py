"""Names of the weights in a checkpoint of each family, as transformers writes them."""

from __future__ import annotations

from dataclasses import dataclass


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


def weight_names(model_type: str) -> WeightNames:
    """Return the names of a family; most are those of Llama."""
    return _NAMES.get(model_type) or WeightNames()
