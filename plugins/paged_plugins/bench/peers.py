"""Other engines to compare with, each in a few lines over its public interface.

A peer loads a model once and then completes token ids greedily, with end of sequence ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from paged_plugins.bench.workloads import Item

_BATCH = 16
"""Requests that transformers generates for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a peer is to load."""

    model: str
    dtype: str
    threads: int
    max_model_len: int
    settings: dict[str, Any]
    """Of our own engine."""


class Contender(Protocol):
    """An engine with its model loaded."""

    version: str
    vocab_size: int | None
    """Token ids are below it, if it says so."""

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Return the tokens that each item generates."""


@dataclass(frozen=True, slots=True)
class Peer:
    """How to get one."""

    name: str
    package: str
    """What must be installed."""
    load: Callable[[Task], Contender]
    summary: str

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None


class PagedCore:
    """Our own engine."""

    def __init__(self, task: Task) -> None:
        from paged_core import LLM, __version__

        self.version = __version__
        self._llm = LLM(**task.settings)
        self.vocab_size: int | None = self._llm.engine.capacity.vocab_size

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """All at once; the engine makes its batches."""
        from paged_core import SamplingParams

        outputs = self._llm.generate(
            [item.prompt for item in items],
            [SamplingParams(max_tokens=item.num_output, ignore_eos=True) for item in items],
        )
        return [output.outputs[0].token_ids for output in outputs]


class _Transformers:
    """Batches in the order of arrival, padded on the left; each runs to its longest output."""

    batch_size: int
    vocab_size: int | None = None

    def __init__(self, task: Task) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        transformers.utils.logging.disable_progress_bar()  # the terminal has our own
        self.version = transformers.__version__
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, task.dtype), attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Return them batch by batch."""
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
        tokens = torch.zeros(len(items), width, dtype=torch.long)
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

    batch_size = _BATCH


class TransformersSingle(_Transformers):
    """``generate`` for one request after another."""

    batch_size = 1


class Vllm:
    """vLLM's offline interface, with its own settings but for the length."""

    vocab_size: int | None = None

    def __init__(self, task: Task) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", str(task.threads))
        vllm = import_module("vllm")

        self.version = vllm.__version__
        self._sampling = vllm.SamplingParams
        self._llm = vllm.LLM(
            task.model,
            dtype=task.dtype,
            max_model_len=task.max_model_len,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )

    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """All at once; the engine makes its batches."""
        outputs = self._llm.generate(
            [{"prompt_token_ids": item.prompt} for item in items],
            [
                self._sampling(
                    temperature=0, max_tokens=item.num_output, ignore_eos=True, detokenize=False
                )
                for item in items
            ],
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]


OURS = Peer("paged_core", "paged_core", PagedCore, "this engine, with the settings given")
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "transformers_static",
            "transformers",
            TransformersStatic,
            f"transformers generate over batches of {_BATCH}",
        ),
        Peer(
            "transformers_single",
            "transformers",
            TransformersSingle,
            "transformers generate for one request after another",
        ),
        Peer("vllm", "vllm", Vllm, "vLLM, all requests at once"),
    )
}
