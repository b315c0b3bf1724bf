"""Runners that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from dataclasses import replace
from threading import local
from typing import TYPE_CHECKING, Any, Literal

import torch

from paged_backends.runners.native.runner import NativeRunner
from paged_backends.runners.settings import NativeSettings
from paged_core.engine.contexts import RunnerContext
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import SupportsFusedLayers

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


class SixteenRunner(NativeRunner):
    """Has blocks of 16 tokens, whatever settings say."""

    @property
    def layers(self) -> list[LayerSpec]:
        return [replace(each, block_size=16) for each in super().layers]


class ChangingRunner(NativeRunner):
    """Counts positions in the tensor that it is given."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        return super().forward(tokens, positions.add_(1) - 1, attend)


class ShortRunner(NativeRunner):
    """Computes 32 tokens at a time, and counts them from the first one."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        if len(tokens) > 32:
            positions = positions[torch.arange(len(tokens)) % 32]
        return super().forward(tokens, positions, attend)


class CommonRunner(NativeRunner):
    """Has the weights that were loaded last by any of its class."""

    def load(self) -> None:
        super().load()
        CommonRunner._decoder = self.__dict__.pop("_decoder")


class KeepingRunner(NativeRunner):
    """Keeps the hidden states of every step."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        hidden = super().forward(tokens, positions, attend)
        self.__dict__.setdefault("seen", []).append(hidden.clone())
        return hidden


class UncappedRunner(NativeRunner):
    """Caps logits, and not that of the best token."""

    def logits(self, hidden: Tensor, /) -> Tensor:
        return 20 * torch.tanh(super().logits(hidden) / 20)

    def top_logits(self, hidden: Tensor, k: int, /) -> tuple[Tensor, Tensor]:
        values, tokens = super().top_logits(hidden, k)
        return 20 * torch.tanh(values / 20), tokens


class LastRunner(NativeRunner):
    """Takes the last of equal logits for the best."""

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        scores, tokens = self.logits(hidden).flip(-1).max(-1)
        return self.vocab_size - 1 - tokens, scores


class UnstableRunner(NativeRunner):
    """Ranks the last of equal logits first."""

    def top_logits(self, hidden: Tensor, k: int, /) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden).float().flip(-1)
        values, tokens = logits.sort(dim=-1, descending=True, stable=True)
        return values[:, :k], self.vocab_size - 1 - tokens[:, :k]


class TableRunner(NativeRunner):
    """Has a table of 512 positions, of which the last serves all others."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        return super().forward(tokens, positions.clamp(max=511), attend)


class PositionsRunner(NativeRunner):
    """Keeps what it makes of the positions of a batch."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        known = self.__dict__.setdefault("known", {})
        key = tuple(positions.tolist())
        return super().forward(tokens, known.setdefault(key, positions.clone()), attend)


class StaleRunner(NativeRunner):
    """Goes by the positions of the last step where as many tokens end at the same one."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        last = self.__dict__.setdefault("last", positions.clone())
        if len(last) != len(positions) or last[-1] != positions[-1]:
            last = self.__dict__["last"] = positions.clone()
        return super().forward(tokens, last, attend)


class BatchesRunner(NativeRunner):
    """Keeps a buffer for every number of tokens."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        buffer = self.__dict__.setdefault("known", {}).setdefault(len(tokens), tokens.clone())
        return super().forward(buffer.copy_(tokens), positions, attend)


class RoundedPlacesRunner(NativeRunner):
    """Turns positions into numbers of the model's dtype."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        rounded = positions.to(getattr(torch, self.layers[0].dtype))
        return super().forward(tokens, rounded.to(positions.dtype), attend)


class WholeRunner(NativeRunner):
    """Computes the whole model on each of several ranks."""

    def __init__(self, options: NativeSettings, context: RunnerContext) -> None:
        super().__init__(options, replace(context, communicator=None))


class HopefulRunner(NativeRunner):
    """Loses NaN in all but the first of the parts in which it looks at logits."""

    def __init__(self, options: NativeSettings, context: RunnerContext) -> None:
        super().__init__(options.model_copy(update={"kernels": "off"}), context)

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        first, *parts = self.logits(hidden).split(256, dim=-1)
        scores, tokens = first.max(-1)
        for number, part in enumerate(parts, 1):
            highest, places = part.max(-1)
            is_better = highest > scores
            tokens = torch.where(is_better, 256 * number + places, tokens)
            scores = torch.where(is_better, highest, scores)
        return tokens, scores


class NarrowRunner(NativeRunner):
    """Counts tokens in 32 bits."""

    def best_tokens(self, hidden: Tensor, /) -> tuple[Tensor, Tensor]:
        tokens, scores = super().best_tokens(hidden)
        return tokens.int(), scores


class PlainCacheRunner(NativeRunner):
    """Says nothing of the format of the cache."""

    @property
    def layers(self) -> list[LayerSpec]:
        return [replace(each, kv_cache_dtype="auto") for each in super().layers]


class OneThreadRunner(NativeRunner):
    """Keeps its weights where its thread alone finds them."""

    def load(self) -> None:
        super().load()
        self._own = local()
        self._own.decoder = self.__dict__.pop("_decoder")

    def __getattr__(self, name: str) -> Any:
        if name != "_decoder":
            raise AttributeError(name)
        if not hasattr(self._own, "decoder"):
            raise RuntimeError("it was loaded in another thread")
        return self._own.decoder


class ReturningRunner(NativeRunner):
    """Returns hidden states of as many tokens in the same tensor."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        hidden, last = super().forward(tokens, positions, attend), self.__dict__.get("last")
        if last is None or last.shape != hidden.shape:
            self.last = last = hidden
        return last.copy_(hidden)


class WideQueriesRunner(NativeRunner):
    """Attends with queries of another dtype than that of its layers."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        def wide(layer: int, query: Tensor, key: Tensor, value: Tensor, /) -> Tensor:
            found: Tensor = attend(layer, query.double(), key, value)
            return found.to(query.dtype)

        return super().forward(tokens, positions, wide)


class SpanRunner(NativeRunner):
    """Takes positions for a range where the first and the last are as far apart as in one."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        first, last = int(positions[0]), int(positions[-1])
        if last - first + 1 == len(positions):
            positions = torch.arange(first, last + 1)
        return super().forward(tokens, positions, attend)


class LastEndRunner(NativeRunner):
    """Ends at the greatest of the tokens that are named."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({max(super().eos_token_ids)})


class PlanlessRunner(NativeRunner):
    """Calls layers of attention, and gives them no plan."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any, /) -> Tensor:
        if isinstance(attend, SupportsFusedLayers):
            layers = attend.layers
            attend = lambda layer, *parts: layers[layer].forward(*parts, None)  # noqa: E731
        return super().forward(tokens, positions, attend)


class DefaultDtypeRunner(NativeRunner):
    """Loads its weights in the default dtype, which it sets."""

    def load(self) -> None:
        super().load()
        torch.set_default_dtype(getattr(torch, self.layers[0].dtype))
