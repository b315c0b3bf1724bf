"""Fills a folder that has a ``config.json`` with random weights and a tokenizer of three words.

    python tools/random_checkpoint.py FOLDER

Other engines need both to load a model, even if only token ids go in and out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast


def write(folder: Path) -> None:
    """Write the weights, drawn from a fixed seed, and the tokenizer."""
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
