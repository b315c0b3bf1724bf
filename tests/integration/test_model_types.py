"""Every type of model that transformers knows is served, or refused by what it needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KINDS

from integration.step_driver import load_runner
from paged_core.errors import UnsupportedModel

ODD = {
    **dict.fromkeys(["axk2", "deepseek_v32", "deepseek_v4", "glm_moe_dsa", "hy_v4"], "an index"),
    **dict.fromkeys(["inkling_text", "inkling2_text"], "a position bias"),
    **dict.fromkeys(["bloom", "git", "mpt"], "the attention interface"),
    **dict.fromkeys(["jamba", "mamba", "rwkv"], "recurrent state|the attention interface"),
    **dict.fromkeys(["bart", "whisper"], "no position ids"),
    "minimax_m3_vl_text": "an index",
}
"""Types with the reason that they are refused for."""
NAMED = {*ODD, "blt"}
"""Types that are refused, and one of which the library does not save all weights."""
SIZES: dict[int, str] = {
    2: "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers index_n_heads "
    "num_experts_per_tok num_key_value_heads",
    4: "num_attention_heads num_heads n_head n_heads encoder_attention_heads n_routed_experts "
    "decoder_attention_heads num_local_experts num_experts moe_num_experts",
    1: "n_group topk_group first_k_dense_replace bos_token_id",
    8: "index_topk sliding_window qk_rope_head_dim",
    16: "head_dim kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim index_head_dim "
    "mamba_d_state",
    64: "hidden_size n_embd d_model embedding_size word_embed_proj_dim attention_hidden_size",
    96: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff ffn_hidden_size "
    "moe_intermediate_size shared_expert_intermediate_size",
    300: "vocab_size",
    256: "max_position_embeddings n_positions",
    0: "pad_token_id",
}

COMMON = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
GIVEN: dict[str, dict[str, Any]] = {
    "bamba": COMMON | MAMBA | {"attn_layer_indices": [1]},
    "dbrx": {
        **{"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 300},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "hidden_size": 64},
    },
    "dots1": COMMON | EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "falcon": {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2},
    "gemma4_text": COMMON | WINDOWS | {"hidden_size_per_layer_input": 0, "global_head_dim": 32},
    "gemma4_unified_text": COMMON | WINDOWS,
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": COMMON | MAMBA | {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": COMMON,
    "hunyuan_v1_moe": COMMON | EXPERTS | {"moe_topk": 2},
    "laguna": COMMON | WINDOWS | EXPERTS | {"num_attention_heads_per_layer": [4, 8]},
    "lfm2_moe": COMMON | EXPERTS | {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16},
    "ministral": COMMON | WINDOWS,
    "nemotron": COMMON,
    "qwen4_exp_text": COMMON,
    "zaya": COMMON | {"num_experts": 4, "num_experts_per_tok": 1},
}
"""Small configurations of types whose fields depend on each other."""


def shrunk(config: Any) -> Any:
    """The configuration, with a few layers of a few heads; one layer of each kind that it lists."""
    for size, names in SIZES.items():
        for name in names.split():
            if type(getattr(config, name, None)) is int:
                setattr(config, name, size)
    for name, value in [*vars(config).items()]:
        if isinstance(value, transformers.PreTrainedConfig):
            shrunk(value)
        elif name.endswith(("layer_types", "block_type")) and value:
            setattr(config, name, [value[0], [*dict.fromkeys(value)][-1]])
    if config.model_type == "minimax_m3_vl_text":
        config.layer_types = ["full_attention", "minimax_m3_sparse"]
    return config


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.heavy) for kind in ODD]
    + [pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind not in NAMED],
)
def test_a_type_is_served_or_refused_by_what_it_needs(kind: str, tmp_path: Path) -> None:
    try:
        made = transformers.CONFIG_MAPPING[kind]
        config = made(**GIVEN[kind]) if kind in GIVEN else shrunk(made())
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(tmp_path)
        transformers.AutoConfig.from_pretrained(tmp_path)
    except Exception as error:  # noqa: BLE001 - each architecture has its own checks
        assert kind not in ODD, error
        pytest.skip(f"transformers makes no small one: {type(error).__name__}")
    try:
        load_runner(tmp_path)
    except UnsupportedModel as error:
        assert re.search("cannot be served: |is not a causal language model", str(error))
        assert re.search(ODD.get(kind, ""), str(error))
    else:
        assert kind not in ODD
