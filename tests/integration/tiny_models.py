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
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GQA = {"num_key_value_heads": 2}


def _make(name: str, *parts: dict[str, Any], **options: Any) -> Callable[[], Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    return lambda: getattr(transformers, name)(**(merged | options))


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _make("LlamaConfig", _COMMON, _GQA),
    "qwen2": _make("Qwen2Config", _COMMON, _GQA),
    "qwen3": _make("Qwen3Config", _COMMON, _GQA, head_dim=16),
    "mistral": _make("MistralConfig", _COMMON, _GQA, sliding_window=8),
    "gemma": _make("GemmaConfig", _COMMON, _GQA, head_dim=16),
    "gemma2": _make(
        "Gemma2Config",
        _COMMON,
        _GQA,
        head_dim=16,
        sliding_window=8,
        query_pre_attn_scalar=1,
        attn_logit_softcapping=0.5,
        final_logit_softcapping=3.0,
    ),
    "gemma3": _make(
        "Gemma3TextConfig",
        _COMMON,
        _GQA,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "opt": _make(
        "OPTConfig",
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=300,
        max_position_embeddings=256,
        word_embed_proj_dim=48,
        init_std=0.1,
    ),
    "gpt2": _make(
        "GPT2Config",
        n_embd=64,
        n_layer=2,
        n_head=4,
        vocab_size=300,
        n_positions=256,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "phi3": _make("Phi3Config", _COMMON, _GQA, sliding_window=8),
    "olmo2": _make("Olmo2Config", _COMMON, _GQA),
    "granite": _make("GraniteConfig", _COMMON, _GQA, logits_scaling=4.0, attention_multiplier=0.4),
    "gpt_neox": _make("GPTNeoXConfig", _COMMON),
    "cohere": _make("CohereConfig", _COMMON, _GQA, logit_scale=0.25),
    "cohere2": _make("Cohere2Config", _COMMON, _GQA, sliding_window=8, sliding_window_pattern=2),
    "phimoe": _make("PhimoeConfig", _COMMON, _GQA, num_local_experts=4, sliding_window=8),
    "starcoder2": _make("Starcoder2Config", _COMMON, _GQA, sliding_window=8),
    "stablelm": _make("StableLmConfig", _COMMON, _GQA),
    "gemma3n": _make(
        "Gemma3nTextConfig",
        _COMMON,
        _GQA,
        head_dim=16,
        num_hidden_layers=4,
        intermediate_size=[96] * 4,
        activation_sparsity_pattern=[0.0] * 4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=8,
        vocab_size_per_layer_input=300,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
    ),
    "mixtral": _make("MixtralConfig", _COMMON, _GQA, num_local_experts=4, sliding_window=None),
    "deepseek_v3": _make(
        "DeepseekV3Config",
        _COMMON,
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

NATIVE: dict[str, Callable[[], Any]] = {
    **{name: FAMILIES[name] for name in ("llama", "mistral", "qwen2", "qwen3", "opt", "gpt2")},
    **{name: FAMILIES[name] for name in ("gemma", "gemma2", "gemma3")},
    "llama, llama3 rope, biases": _make(
        "LlamaConfig",
        _COMMON,
        _GQA,
        attention_bias=True,
        mlp_bias=True,
        hidden_act="gelu",
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 3.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama, linear rope, tied": _make(
        "LlamaConfig",
        _COMMON,
        num_key_value_heads=1,
        head_dim=24,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
    ),
    "qwen2, windows": _make(
        "Qwen2Config",
        _COMMON,
        _GQA,
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=1,
    ),
    "gemma3, linear rope, caps": _make(
        "Gemma3TextConfig",
        _COMMON,
        _GQA,
        head_dim=16,
        num_hidden_layers=3,
        sliding_window=8,
        sliding_window_pattern=3,
        attention_bias=True,
        final_logit_softcapping=3.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "opt, norms last": _make(
        "OPTConfig",
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=300,
        max_position_embeddings=256,
        do_layer_norm_before=False,
        enable_bias=False,
        activation_function="gelu",
        init_std=0.1,
    ),
    "gpt2, scaled by layer": _make(
        "GPT2Config",
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_inner=80,
        vocab_size=300,
        n_positions=256,
        initializer_range=0.1,
        scale_attn_by_inverse_layer_idx=True,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=[2, 3],
    ),
}
"""What the runner ``native`` covers: whole families, and what they leave to configuration."""

UNSUPPORTED: dict[str, tuple[Callable[[], Any], str]] = {
    "bloom": (
        _make("BloomConfig", hidden_size=64, n_layer=2, n_head=4, vocab_size=300),
        "attention interface",
    ),
    "mamba": (
        _make("MambaConfig", hidden_size=64, num_hidden_layers=2, vocab_size=300, state_size=8),
        "recurrent state",
    ),
    "falcon_h1": (
        _make("FalconH1Config", _COMMON, _GQA, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16),
        "recurrent state",
    ),
    "gpt_oss": (
        _make(
            "GptOssConfig",
            _COMMON,
            _GQA,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
        ),
        "attention sinks",
    ),
    "lfm2": (
        _make("Lfm2Config", _COMMON, _GQA, layer_types=["conv", "full_attention"]),
        "another kind",
    ),
    "gptj": (
        _make("GPTJConfig", n_embd=64, n_layer=2, n_head=4, rotary_dim=8, vocab_size=300),
        "attention interface",
    ),
    "bert": (_make("BertConfig", _COMMON), "not causal"),
    "llama4": (
        _make(
            "Llama4TextConfig",
            _COMMON,
            _GQA,
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
