"""Executor and runner of the checkpoint that says what it is told."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paged_backends.executors.batch import Batch, KnownSequence
from paged_backends.executors.local import LocalExecutor
from paged_backends.runners.native.runner import NativeRunner
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity
from paged_core.step import StepInput
from server.told import told_tokens

_ABOVE = 30.0
"""Logit of the token that is told, above that of the best other one."""


class ToldRunner(NativeRunner):
    """Adds a column to hidden states: the token that comes next, or -1."""

    told: Tensor
    """[T]"""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        hidden = super().forward(tokens, positions, attend)
        return torch.cat([hidden, self.told.to(hidden)[:, None]], dim=1)

    def logits(self, hidden: Tensor, /) -> Tensor:
        logits = super().logits(hidden[:, :-1].contiguous()).float()
        told = hidden[:, -1].long()
        (rows,) = torch.where(told >= 0)
        logits[rows, told[rows]] = logits[rows].amax(1) + _ABOVE
        return logits

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        score, token = self.logits(hidden).max(1)
        return token, score

    def top_logits(self, hidden: Tensor, k: int, /) -> tuple[Tensor, Tensor]:
        score, token = self.logits(hidden).topk(k)
        return score, token


class ToldExecutor(LocalExecutor):
    """Tells the runner what each sequence of a batch goes on with."""

    def start(self) -> Capacity:
        capacity = super().start()
        assert self._loaded is not None
        runner, batches, tokenizer = self._loaded.runner, self._loaded.batches, self.tokenizer()
        assert isinstance(runner, ToldRunner), "executor told needs runner told"
        assert tokenizer is not None
        make, (end,) = batches.make, runner.eos_token_ids
        plans: dict[SeqId, list[int]] = {}

        def told(sequence: KnownSequence) -> int:
            prompt = sequence.tokens[: sequence.sampling.num_prompt_tokens]
            if sequence.id not in plans:
                plans[sequence.id] = told_tokens(tokenizer, prompt)
            return next(iter(plans[sequence.id][len(sequence.tokens) - len(prompt) :][:1]), end)

        def make_told(step: StepInput) -> Batch | None:
            for seq_id in step.removed:
                plans.pop(seq_id, None)
            batch = make(step)
            if batch is not None:
                runner.told = torch.full((len(batch.tokens_T),), -1)
                for place in batch.complete_S.nonzero()[0].tolist():
                    runner.told[int(batch.last_S[place])] = told(batch.sequences[place])
            return batch

        batches.make = make_told  # type: ignore[method-assign]
        return capacity
