"""Tiny random checkpoints of many families, in float32, and what the library itself generates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

_COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OPT = {
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "init_std": 0.1,
}
_GPT2 = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 300,
    "n_positions": 256,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_WINDOWS = ["sliding_attention", "full_attention"]
_GEMMA = {"head_dim": 16, "sliding_window": 8}


def of(name: str, shape: dict[str, Any] = _COMMON, **options: Any) -> Callable[[], Any]:
    """The configuration of a class of the library; keys that are ``None`` are left out."""
    given = {key: value for key, value in (shape | options).items() if value is not None}
    return lambda: getattr(transformers, f"{name}Config")(**given)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": of("Llama"),
    "qwen2": of("Qwen2"),
    "qwen3": of("Qwen3", head_dim=16),
    "mistral": of("Mistral", sliding_window=8),
    "gemma": of("Gemma", head_dim=16),
    "gemma2": of(
        "Gemma2",
        **_GEMMA,
        query_pre_attn_scalar=1,
        attn_logit_softcapping=0.5,
        final_logit_softcapping=3.0,
    ),
    "gemma3": of("Gemma3Text", **_GEMMA, layer_types=_WINDOWS),
    "opt": of("OPT", _OPT, word_embed_proj_dim=48),
    "gpt2": of("GPT2", _GPT2),
    "phi3": of("Phi3", sliding_window=8),
    "olmo2": of("Olmo2"),
    "granite": of("Granite", logits_scaling=4.0, attention_multiplier=0.4),
    "gpt_neox": of("GPTNeoX", num_key_value_heads=None),
    "cohere": of("Cohere", logit_scale=0.25),
    "cohere2": of("Cohere2", sliding_window=8, sliding_window_pattern=2),
    "phimoe": of("Phimoe", num_local_experts=4, sliding_window=8),
    "starcoder2": of("Starcoder2", sliding_window=8),
    "stablelm": of("StableLm"),
    "gpt_oss": of("GptOss", **_GEMMA, num_local_experts=4, num_experts_per_tok=2),
    "gemma3n": of(
        "Gemma3nText",
        **_GEMMA,
        num_hidden_layers=4,
        intermediate_size=[96] * 4,
        activation_sparsity_pattern=[0.0] * 4,
        num_kv_shared_layers=2,
        layer_types=_WINDOWS * 2,
        vocab_size_per_layer_input=300,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
    ),
    "gemma4": of(  # whose last layer has wider heads
        "Gemma4Text",
        **_GEMMA,
        global_head_dim=32,
        layer_types=_WINDOWS,
        vocab_size_per_layer_input=300,
        hidden_size_per_layer_input=8,
    ),
    "gemma4_unified": of(  # whose tokens of an image see each other
        "Gemma4Unified",
        {},
        text_config=_COMMON
        | _GEMMA
        | {"layer_types": _WINDOWS, "model_type": "gemma4_unified_text"},
    ),
    "mixtral": of("Mixtral", num_local_experts=4),
    "qwen3_moe": of(
        "Qwen3Moe", head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "granitemoehybrid": of(  # of which other layers are recurrent
        "GraniteMoeHybrid",
        layer_types=["attention"] * 2,
        num_local_experts=4,
        mamba_n_heads=4,
        mamba_expand=1,
        shared_intermediate_size=48,
    ),
    "deepseek_v3": of(
        "DeepseekV3",
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
}
"""Configurations that must be served."""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 32,
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
"""Rotary embeddings."""

NATIVE: dict[str, Callable[[], Any]] = {
    **{name: FAMILIES[name] for name in ("llama", "mistral", "qwen2", "qwen3", "opt", "gpt2")},
    **{name: FAMILIES[name] for name in ("gemma", "gemma2", "gemma3")},
    "llama, llama3 rope, biases": of(
        "Llama", attention_bias=True, mlp_bias=True, hidden_act="gelu", rope_parameters=LLAMA3
    ),
    "llama, linear rope, tied": of(
        "Llama",
        num_key_value_heads=1,
        head_dim=24,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
    ),
    "qwen2, windows": of("Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "gemma3, linear rope, caps": of(
        "Gemma3Text",
        **_GEMMA,
        num_hidden_layers=3,
        sliding_window_pattern=3,
        attention_bias=True,
        final_logit_softcapping=3.0,
        rope_parameters=GEMMA3_ROPES,
    ),
    "opt, norms last": of(
        "OPT", _OPT, do_layer_norm_before=False, enable_bias=False, activation_function="gelu"
    ),
    "gpt2, scaled by layer": of(
        "GPT2",
        _GPT2,
        n_inner=80,
        scale_attn_by_inverse_layer_idx=True,
        tie_word_embeddings=False,
        eos_token_id=[2, 3],
    ),
}
"""Models that the runner ``native`` covers: families, and what they leave to configuration."""

UNSUPPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "bloom": (
        of("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300}),
        "attention interface",
    ),
    "mamba": (
        of(
            "Mamba",
            {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300, "state_size": 8},
        ),
        "recurrent state",
    ),
    "lfm2": (of("Lfm2", layer_types=["conv", "full_attention"]), "another kind"),
    "bert": (of("Bert", num_key_value_heads=None), "not causal"),
    "llama4": (
        of(
            "Llama4Text",
            head_dim=16,
            intermediate_size_mlp=96,
            num_local_experts=2,
            attention_chunk_size=8,
        ),
        "chunked",
    ),
}
"""Configurations that must be refused, and a word of the reason."""

PROMPTS = [[3, 5, 7, 11, 13, 17, 19], [23, 29, 31], list(range(40, 62)), [9]]
"""Token ids; one prompt is longer than the sliding windows above."""


def save(name: str, folder: Path, *, seed: int = 0, **save_options: Any) -> Path:
    """Make a checkpoint of the family ``name`` in ``folder``, and return the folder."""
    make = FAMILIES.get(name) or NATIVE.get(name) or UNSUPPORTED[name][0]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(make(), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # biases start at zero, where a lost one is not missed
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, **save_options)
    return folder


def generate(
    folder: Path, prompts: Sequence[Sequence[int]], num_tokens: int, device: str = "cpu"
) -> list[list[int]]:
    """Return what the library generates greedily, each prompt alone, end of sequence ignored."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model = model.eval().to(device)
    outputs = []
    for prompt in prompts:
        tokens = torch.tensor([list(prompt)], device=device)
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        outputs.append(output[0, len(prompt) :].tolist())
    return outputs
