"""Train the demo model that ships with the package, from nothing, on two CPU cores.

    python examples/train_demo_model.py --out backends/paged_backends/demo

makes the shipped checkpoint: about a quarter of an hour on two cores and 2 GB of memory.
`--quick` takes two minutes and gives a model that speaks, but gets many facts wrong.

The text comes from `demo_corpus.py` beside this file, so nothing is downloaded. The script

1. trains a byte-level BPE tokenizer (any text can be encoded, and comes back unchanged),
2. trains a small Llama in float32: AdamW, a short warm-up, then a cosine down to zero,
3. writes a folder that `transformers` loads as it is, with the weights in bfloat16.

With the same seed, thread count, versions and kind of processor the weights come out the same.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from demo_corpus import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    Document,
    documents,
)

VOCABULARY = 2048
CONTEXT = 1024
SHORT_ROW = 256
TOKENS_PER_STEP = 1024
LONG_EVERY = 8  # every eighth step trains on rows as long as the context
LEARNING_RATE = 3e-3  # at its peak
PROMPT_WEIGHT = 0.02  # in the loss; the answers weigh 1


def train_tokenizer(seed: int) -> Tokenizer:
    """A byte-level BPE tokenizer that puts BOS in front and takes digits one by one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    stream = documents(random.Random(seed))
    sample = (piece.text for _ in range(20_000) for piece in next(stream))
    tokenizer.train_from_iterator(sample, trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, bos)]
            ),
        ]
    )
    return tokenizer


@dataclass
class Batch:
    """Rows of tokens, how much each weighs in the loss, and its position (b rows, t tokens)."""

    tokens_bt: torch.Tensor
    weights_bt: torch.Tensor
    positions_bt: torch.Tensor


class Packer:
    """Fills rows with documents, one after the other; the last one of a row is cut off.

    In a short row positions start again with each document, and `transformers` then lets no
    document see another: that is how a prompt arrives later. In a long row positions run on to
    the end of the context, which is what a long conversation looks like.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, *, long: bool) -> None:
        self.tokenizer = tokenizer
        self.row_length = CONTEXT if long else SHORT_ROW
        self.restart = not long
        self.bos = tokenizer.token_to_id(BOS)
        self.eos = tokenizer.token_to_id(EOS)
        self.source = documents(random.Random(seed), long=long)

    def encode(self, document: Document) -> tuple[list[int], list[float]]:
        """BOS, the pieces one by one, EOS; and the weight of each token."""
        tokens, weights = [self.bos], [PROMPT_WEIGHT]
        for piece in document:
            ids = self.tokenizer.encode(piece.text, add_special_tokens=False).ids
            tokens += ids
            weights += [1.0 if piece.is_answer else PROMPT_WEIGHT] * len(ids)
        return [*tokens, self.eos], [*weights, 1.0]

    def row(self) -> tuple[list[int], list[float], list[int]]:
        tokens: list[int] = []
        weights: list[float] = []
        positions: list[int] = []
        while len(tokens) < self.row_length:
            ids, importance = self.encode(next(self.source))
            start = 0 if self.restart else len(tokens)
            tokens += ids
            weights += importance
            positions += range(start, start + len(ids))
        cut = self.row_length
        return tokens[:cut], weights[:cut], positions[:cut]

    def batch(self) -> Batch:
        rows = [self.row() for _ in range(TOKENS_PER_STEP // self.row_length)]
        tokens, weights, positions = zip(*rows, strict=True)
        return Batch(torch.tensor(tokens), torch.tensor(weights), torch.tensor(positions))


def batches(tokenizer: Tokenizer, seed: int) -> Iterator[Batch]:
    """Mostly short rows, now and then long ones."""
    short = Packer(tokenizer, seed + 1, long=False)
    long = Packer(tokenizer, seed + 2, long=True)
    step = 0
    while True:
        step += 1
        yield (long if step % LONG_EVERY == 0 else short).batch()


def build_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """The weighted mean of the cross-entropy of each next token."""
    logits_btv = model(
        input_ids=batch.tokens_bt, position_ids=batch.positions_bt, use_cache=False
    ).logits
    losses = functional.cross_entropy(
        logits_btv[:, :-1].flatten(0, 1), batch.tokens_bt[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights_bt[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def train(model: LlamaForCausalLM, tokenizer: Tokenizer, steps: int, seed: int) -> None:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))
    warm_up = max(1, min(100, steps // 10))

    def schedule(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    model.train()
    started, losses = time.perf_counter(), []
    for step, batch in zip(range(1, steps + 1), batches(tokenizer, seed), strict=False):
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 50 == 0 or step == steps:
            seconds = time.perf_counter() - started
            left = seconds / step * (steps - step)
            print(
                f"step {step:5d}/{steps}  loss {sum(losses[-50:]) / len(losses[-50:]):.4f}  "
                f"{step * TOKENS_PER_STEP / seconds:6.0f} tokens/s  {left / 60:4.1f} min left",
                flush=True,
            )


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Weights in bfloat16, and a tokenizer that needs no code of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
        do_sample=False,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=2400, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="400 steps only")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()

    torch.set_num_threads(2)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    started = time.perf_counter()
    tokenizer = train_tokenizer(options.seed)
    model = build_model(tokenizer)
    print(f"{tokenizer.get_vocab_size()} tokens, {model.num_parameters():,} parameters", flush=True)
    steps = 400 if options.quick else options.steps
    train(model, tokenizer, steps, options.seed)
    save(model, tokenizer, options.out)
    print(f"{(time.perf_counter() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
