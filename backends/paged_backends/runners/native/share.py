"""Shares of a decoder that ranks hold, as in Megatron-LM (arXiv:1909.08053).

Query, key and value, gate and up are divided by their outputs; the output of attention and ``down``
by their inputs, so that each rank has a summand of their result; embedding and head by tokens of
the vocabulary. Everything else, and the hidden states, are the same on all ranks.

Shapes: T tokens in the batch, I inputs, O outputs, V tokens of the vocabulary, E embedding size,
R rows that sample a token, N ranks, K tokens of each row, the best first.
"""

# ruff: noqa: N803, N806 - the shape of an array is the upper-case end of its name
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paged_backends.runners.native.config import DecoderConfig
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.communicator import Communicator

AllReduce = Callable[[Tensor], Any]
"""Replaces a tensor by its sum over the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which part of a model a rank holds; by default, there is one rank, which holds all."""

    rank: int = 0
    size: int = 1
    communicator: Communicator | None = None
    """``None``: there is one rank."""

    @classmethod
    def of(cls, communicator: Communicator | None) -> Share:
        """Return what a rank holds, by what it reaches the others with."""
        if communicator is None or communicator.size == 1:
            return cls()
        return cls(rank=communicator.rank, size=communicator.size, communicator=communicator)

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over the ranks."""
        if self.communicator is not None:
            self.communicator.all_reduce(tensor)

    def all_agree(self, agrees: bool, device: torch.device) -> bool:
        """Return whether all ranks agree; how each computes a step decides what is exchanged."""
        if self.communicator is None:
            return agrees
        votes = self.communicator.all_gather(torch.tensor([float(agrees)], device=device))
        return bool(votes.all())

    @property
    def name(self) -> str:
        """Tells it from others in the names of files."""
        return f"-{self.rank + 1}of{self.size}" if self.size > 1 else ""

    def local(self, config: DecoderConfig, place: Path) -> DecoderConfig:
        """Return a model of the sizes that this rank computes with.

        Key and value heads are divided, or else each is held by several ranks.

        Args:
            place: of the model, for errors.

        Raises:
            UnsupportedModel: its heads cannot be divided among so many ranks.
        """
        heads, kv_heads = config.num_heads, config.num_kv_heads
        if not _divides(config, self.size):
            raise UnsupportedModel(
                f"{place} has {heads} query heads and {kv_heads} KV heads, which {self.size} ranks "
                f"cannot share; use {listed(_numbers_of_ranks(config))}"
            )
        return replace(
            config,
            num_heads=heads // self.size,
            num_kv_heads=max(kv_heads // self.size, 1),
            intermediate_size=length(self.units(config.intermediate_size)),
            vocab_size=length(self.units(config.vocab_size)),
        )

    def units(self, count: int, unit: int = 1) -> slice:
        """Return this rank's of ``count``, in whole units; shares differ by a unit at most.

        Sizes need not divide: an uneven share costs the time of a unit, a refusal the model.
        """
        if self.size == 1:
            return slice(0, count)
        total = -(-count // unit)
        begin, end = (total * rank // self.size * unit for rank in (self.rank, self.rank + 1))
        return slice(begin, min(end, count))

    def heads(self, count: int, width: int) -> slice:
        """Return this rank's rows of ``count`` heads; fewer than ranks are held several times."""
        held = max(count // self.size, 1)
        begin = self.rank * count // self.size
        return slice(begin * width, (begin + held) * width)


def length(part: slice) -> int:
    """Return how many there are in a part whose ends are given."""
    return int(part.stop - part.start)


def listed(sizes: list[int]) -> str:
    """Return numbers of ranks as a message lists them."""
    *most, last = map(str, sizes)
    return f"{', '.join(most)} or {last} ranks" if most else "one rank"


_MAX_LISTED = 1024
"""Ranks, in a message; a damaged configuration may say 10^9 heads."""


def _divides(config: DecoderConfig, size: int) -> bool:
    """Return whether so many ranks can share the heads of a model."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


def _numbers_of_ranks(config: DecoderConfig) -> list[int]:
    """Return how many ranks can share the heads of a model."""
    sizes = range(1, min(config.num_heads, _MAX_LISTED) + 1)
    return [size for size in sizes if _divides(config, size)]


def check_output(share: Share, config: DecoderConfig, unit: int, name: str) -> None:
    """Check that the inputs of attention's output projection can be divided by heads.

    Args:
        unit: inputs that share a scale, and cannot be cut apart.
        name: of the weight.

    Raises:
        UnsupportedModel: a group would lie on two ranks.
    """
    width = config.num_heads * config.head_dim

    def fits(size: int) -> bool:
        return size == 1 or width // size % unit == 0

    if not fits(share.size):
        raise UnsupportedModel(
            f"{name} is quantised in groups of {unit} inputs, and its {width} are divided into "
            f"{width // share.size} for each of {share.size} ranks, which cuts groups apart; use "
            f"{listed(list(filter(fits, _numbers_of_ranks(config))))}, or weights in smaller groups"
        )


def divided_inputs(share: Share, count: int, unit: int, name: str) -> slice:
    """Return this rank's inputs of a feed-forward's ``down``; raises as :func:`check_output`."""
    groups = -(-count // unit)
    if share.size > groups:
        raise UnsupportedModel(
            f"{name} has {count} inputs in groups of {unit}: {groups} for {share.size} ranks; use "
            f"{groups} ranks at most, or weights in smaller groups"
        )
    return share.units(count, unit)


# ---------------------------------------------------------------------- the vocabulary

_LAST = (1 << 31) - 1
"""The largest token id that a key holds."""
_LOW = (1 << 32) - 1
_NONE = torch.iinfo(torch.int64).min
"""Below the key of any token."""


def keys(scores: Tensor, tokens: Tensor) -> Tensor:
    """Return int64 that are ordered as scores, and where these are equal, as the lower token first.

    NaN comes before all others. High bits hold the float32, low bits what lies above the token.
    """
    numbers = torch.where(scores.isnan(), torch.nan, scores.float()) + 0.0  # -0 is 0
    bits = numbers.view(torch.int32)
    ordered = (bits ^ (bits >> 31 & _LAST)).long()  # of negative numbers, all bits but the sign
    return (ordered << 32) + (_LAST - tokens)


def scores_and_tokens(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float32 and the int64 of which keys were made."""
    bits = (keys >> 32).int()
    return (bits ^ (bits >> 31 & _LAST)).view(torch.float32), _LAST - (keys & _LOW)


def top_keys(logits_RV: Tensor, k: int, first: int = 0) -> Tensor:
    """Return the keys [R, K] of the best tokens, of which the first is ``first``."""
    tokens_V = torch.arange(first, first + logits_RV.shape[1], device=logits_RV.device)
    return keys(logits_RV, tokens_V).topk(k, dim=-1).values


class DividedVocabulary:
    """Puts together what ranks have found among their tokens; each gets the same."""

    def __init__(self, share: Share, communicator: Communicator, vocab_size: int) -> None:
        self._communicator = communicator
        parts = [Share(rank=rank, size=share.size) for rank in range(share.size)]
        self._counts = [length(part.units(vocab_size)) for part in parts]
        self._first = share.units(vocab_size).start

    def logits(self, logits_RV: Tensor) -> Tensor:
        """Return the logits of all tokens; shares of unequal size are filled up on the way."""
        missing = max(self._counts) - logits_RV.shape[1]
        if missing:
            logits_RV = functional.pad(logits_RV, (0, missing))
        logits_NRV = self._communicator.all_gather(logits_RV.contiguous())
        parts = [
            part_RV[:, :count] for part_RV, count in zip(logits_NRV, self._counts, strict=True)
        ]
        return torch.cat(parts, dim=1)

    def best(self, best_R: Tensor, scores_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best of the best tokens of all ranks, and its score in float32."""
        keys_NR = self._communicator.all_gather(keys(scores_R, best_R + self._first))
        scores_R, best_R = scores_and_tokens(keys_NR.max(dim=0).values)
        return best_R, scores_R

    def top_keys(self, logits_RV: Tensor, k: int) -> Tensor:
        """Return the keys [R, K] of the best tokens of all ranks."""
        held = min(k, logits_RV.shape[1])
        keys_RK = top_keys(logits_RV, held, self._first)
        if held < k:
            keys_RK = functional.pad(keys_RK, (0, k - held), value=_NONE)
        keys_NRK = self._communicator.all_gather(keys_RK)
        return keys_NRK.transpose(0, 1).flatten(1).topk(k, dim=-1).values
