"""Runners that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.settings import NativeSettings

if TYPE_CHECKING:
    from torch import Tensor


class FaultyNativeSettings(NativeSettings):
    """Options of ``native``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class PlacelessRunner(NativeRunner):
    """Takes every chunk to be the beginning."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        return super().forward(tokens, positions - positions[0], attend)


class LeakyRunner(NativeRunner):
    """Lets each token attend to the token before it in the batch."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        hidden = super().forward(tokens, positions, attend)
        return hidden + 0.1 * hidden.roll(1, dims=0)


class UpsideDownRunner(NativeRunner):
    """Attends in the last layer first."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        last = len(self.layers) - 1
        return super().forward(
            tokens, positions, lambda layer, *parts: attend(last - layer, *parts)
        )


class CoarseRunner(NativeRunner):
    """Answers in 16 bits."""

    def logits(self, hidden: Tensor, /) -> Tensor:
        return super().logits(hidden).to(torch.bfloat16)


class LastRowRunner(NativeRunner):
    """Returns the hidden state of the last token only."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        return super().forward(tokens, positions, attend)[-1:]


class LoopingRunner(NativeRunner):
    """Computes a chunk token by token, and does not count."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        done = 0
        while done < len(tokens) - 1:
            pass
        return super().forward(tokens, positions, attend)


class StatefulRunner(NativeRunner):
    """Adds something of the batch before."""

    before: float = 0.0

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        hidden = super().forward(tokens, positions, attend) + self.before
        self.before = float(hidden.mean()) * 0.1
        return hidden


class WideRunner(NativeRunner):
    """Says that its vocabulary is larger than it is."""

    @property
    def vocab_size(self) -> int:
        return super().vocab_size + 1


class KeepingRunner(NativeRunner):
    """Keeps the hidden states of every step."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        hidden = super().forward(tokens, positions, attend)
        self.__dict__.setdefault("seen", []).append(hidden.clone())
        return hidden
