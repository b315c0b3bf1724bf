"""A model to benchmark: its shape alone, or with random weights and a tokenizer of three words.

    python tools/random_checkpoint.py FOLDER

fills a folder that has a ``config.json``. Other engines need weights and a tokenizer to load a
model, even if only token ids go in and out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
TINY = QWEN3_06B | {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def write_shape(folder: Path, *, tiny: bool = False) -> Path:
    """Write the shape of Qwen3-0.6B, or a tiny one of the same family; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = TINY if tiny else QWEN3_06B
    (folder / "config.json").write_text(json.dumps(shape, indent=1) + "\n", "utf-8")
    return folder


def write(folder: Path) -> None:
    """Write the weights, drawn from a fixed seed, and the tokenizer."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    words = {"<unk>": 0, "a": 1, "</s>": config.eos_token_id}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"
    ).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
