"""transformers' ``generate``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paged_plugins.bench.peers.peer_engine import PeerEngine, Task
from paged_plugins.bench.workloads import Item

BATCH = 16
"""Requests per batch."""


class _Transformers(PeerEngine):
    """Batches in arrival order, padded on the left; each runs to its longest output."""

    batch_size: int

    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        transformers.utils.logging.disable_progress_bar()  # the terminal has our own
        self.version = transformers.__version__
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, task.dtype), attn_implementation="sdpa"
        ).eval()
        self._model.to(task.device)
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Generate batch by batch."""
        import torch

        with torch.inference_mode():
            return [
                output
                for start in range(0, len(items), self.batch_size)
                for output in self._batch(items[start : start + self.batch_size])
            ]

    def _batch(self, items: Sequence[Item]) -> Iterator[list[int]]:
        import torch

        width = max(len(item.prompt) for item in items)
        longest = max(item.num_output for item in items)
        tokens = torch.zeros(len(items), width, dtype=torch.long, device=self._model.device)
        mask = torch.zeros_like(tokens)
        for row, item in enumerate(items):
            tokens[row, width - len(item.prompt) :] = torch.tensor(item.prompt)
            mask[row, width - len(item.prompt) :] = 1
        generated = self._model.generate(
            input_ids=tokens,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=longest,
            min_new_tokens=longest,
        )
        for row, item in enumerate(items):
            yield generated[row, width : width + item.num_output].tolist()


class TransformersStatic(_Transformers):
    """``generate`` over batches of sixteen."""

    batch_size = BATCH


class TransformersSingle(_Transformers):
    """``generate`` for one request after another."""

    batch_size = 1
