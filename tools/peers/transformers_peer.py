"""transformers: its ``generate``, and its continuous batching."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from peer import Item, PeerEngine, Task, main

_BATCH = 16
"""Requests per batch."""
_STOP_SECONDS = 5.0


def _loaded(task: Task) -> tuple[str, Any]:
    """Return the version, and the model on its device."""
    import torch
    import transformers

    torch.set_num_threads(task.threads)
    transformers.utils.logging.disable_progress_bar()  # the terminal has our own
    model = transformers.AutoModelForCausalLM.from_pretrained(
        task.model, dtype=getattr(torch, task.dtype), attn_implementation="sdpa"
    )
    return transformers.__version__, model.eval().to(task.device)


class TransformersStatic(PeerEngine):
    """``generate`` over batches of sixteen in arrival order, padded on the left; each runs to its
    longest output."""

    package = "transformers"

    def __init__(self, task: Task) -> None:
        self.version, self._model = _loaded(task)
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Generate batch by batch."""
        import torch

        with torch.inference_mode():
            return [
                output
                for start in range(0, len(items), _BATCH)
                for output in self._batch(items[start : start + _BATCH])
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


class TransformersContinuous(PeerEngine):
    """Its manager, with its defaults; it sizes its cache and captures CUDA graphs at the start."""

    package = "transformers"
    samples = True

    def __init__(self, task: Task) -> None:
        import transformers

        self.version, model = _loaded(task)
        sampling = {"do_sample": True, "temperature": task.temperature, "top_k": 0}
        config = transformers.GenerationConfig(
            max_new_tokens=task.longest_request,
            eos_token_id=-1,
            pad_token_id=0,
            **(sampling if task.temperature else {"do_sample": False}),
        )
        self._manager = model.init_continuous_batching(
            generation_config=config,
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                max_memory_percent=_memory_share(task)
            ),
        )
        self._manager.warmup()
        self._manager.start()

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Submit all items at once; the manager batches them."""
        ids = [
            self._manager.add_request(list(item.prompt), max_new_tokens=item.num_output)
            for item in items
        ]
        done: dict[str, list[int]] = {}
        while len(done) < len(ids):
            result = self._manager.get_result(timeout=1)
            if result is None and not self._manager.is_running():
                raise RuntimeError("its thread has ended; see its messages")
            if result is not None and result.error is not None:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
        return [done[request] for request in ids]

    def close(self) -> None:
        """End its thread, which would keep the process alive."""
        self._manager.stop(block=True, timeout=_STOP_SECONDS)


def _memory_share(task: Task) -> float | None:
    """Return the share of the memory for its cache; ``None``: its default, which suits a GPU."""
    if task.device != "cpu":
        return None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(0.5, (task.cache_gib << 30) / memory)


if __name__ == "__main__":
    main(TransformersStatic, TransformersContinuous)
