"""transformers' continuous batching."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from paged_plugins.bench.peers.peer_engine import PeerEngine, Task
from paged_plugins.bench.workloads import Item

_STOP_SECONDS = 5.0


class TransformersContinuous(PeerEngine):
    """Its manager, with its defaults; it sizes its cache and captures CUDA graphs at the start."""

    @staticmethod
    def problem(temperature: float) -> str | None:
        """Return ``None``: it decodes greedily and samples."""
        return None

    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        transformers.utils.logging.disable_progress_bar()
        self.version = transformers.__version__
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, task.dtype), attn_implementation="sdpa"
        )
        sampling = {"do_sample": True, "temperature": task.temperature, "top_k": 0}
        config = transformers.GenerationConfig(
            max_new_tokens=task.longest_request,
            eos_token_id=-1,
            pad_token_id=0,
            **(sampling if task.temperature else {"do_sample": False}),
        )
        model.to(task.device).eval()
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
