"""The best tokens of a vocabulary that is divided among ranks are those of the whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from integration.rank_threads import ThreadCommunicator, ThreadGroup
from paged_backends.runners.native.decoder import SummedLinear
from paged_backends.runners.native.ops import Ops
from paged_backends.runners.native.share import (
    DividedVocabulary,
    Share,
    keys,
    scores_and_tokens,
)

INF, NAN = float("inf"), float("nan")
LOGIT = st.sampled_from([-INF, -3.5, -1.0, -0.0, 0.0, 1e-40, 1.0, 2.5, INF])


@given(st.lists(st.tuples(st.floats(width=32), st.integers(0, 2**31 - 1)), min_size=1))
def test_keys_are_in_the_order_of_scores_then_of_lower_tokens(
    pairs: list[tuple[float, int]],
) -> None:
    scores, tokens = (torch.tensor(list(side)) for side in zip(*pairs, strict=True))
    scores = scores.float()
    made = keys(scores, tokens)
    again, same = scores_and_tokens(made)
    assert torch.equal(same, tokens)
    assert torch.equal(again.nan_to_num(7), scores.nan_to_num(7))
    assert torch.equal(again.isnan(), scores.isnan())

    def order(place: int) -> tuple[float, float, int]:
        score = float(scores[place])
        is_nan = score != score
        return (not is_nan, 0.0 if is_nan else -score, int(tokens[place]))

    places = sorted(range(len(pairs)), key=lambda place: int(made[place]), reverse=True)
    assert all(order(first) <= order(second) for first, second in pairwise(places))


def both(logits: Tensor, size: int, k: int) -> list[list[Tensor]]:
    """Results of each of ``size`` ranks, which have their tokens of these logits."""
    vocab_size = logits.shape[1]

    def rank(communicator: ThreadCommunicator) -> list[Tensor]:
        share = Share.of(communicator)
        vocabulary = DividedVocabulary(share, communicator, vocab_size)
        own = logits[:, share.units(vocab_size)]
        best = vocabulary.best(*Ops().best(own))
        return [vocabulary.logits(own), *best, *scores_and_tokens(vocabulary.top_keys(own, k))]

    return ThreadGroup(size).run(rank)


@given(st.data())
def test_ranks_find_the_first_of_equals(data: st.DataObject) -> None:
    vocab_size, rows = data.draw(st.integers(3, 12)), data.draw(st.integers(1, 3))
    values = [
        data.draw(st.lists(LOGIT, min_size=vocab_size, max_size=vocab_size)) for _ in range(rows)
    ]
    logits = torch.tensor(values)
    k = data.draw(st.integers(1, vocab_size))
    for whole, best, score, top, tokens in both(logits, data.draw(st.sampled_from([2, 3])), k):
        assert torch.equal(whole, logits)
        assert torch.equal(score, logits.max(-1).values)
        assert torch.equal(best, logits.max(-1).indices)
        order = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        assert torch.equal(tokens, order)
        assert torch.equal(top, logits.gather(1, order))


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_logit_that_is_not_a_number_is_kept(place: int) -> None:
    logits = torch.tensor([[1.0, 2.0, INF, -1.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    logits[0, place] = NAN
    for _, best, score, top, tokens in both(logits, 2, 3):
        assert score[0].isnan() and best[0] == place
        assert top[0, 0].isnan() and tokens[0, 0] == place
        assert (float(score[1]), int(best[1])) == (5.0, 4)


def test_bias_and_residual_are_added_once_and_rounded_together() -> None:
    def rank(communicator: ThreadCommunicator) -> list[Tensor]:
        half = torch.tensor([[128.0]], dtype=torch.bfloat16)
        bias = torch.tensor([0.75], dtype=torch.bfloat16)
        layer = SummedLinear(Ops().linear(half), bias, communicator.all_reduce)
        rows = torch.ones(1, 1, dtype=torch.bfloat16)
        residual = torch.tensor([[0.375]], dtype=torch.bfloat16)
        return [layer(rows), layer(rows, residual), residual]

    for alone, added, residual in ThreadGroup(2).run(rank):
        assert alone.item() == 256.0  # of 256.75, in steps of 2
        assert added.item() == 258.0  # of 257.125; rounded one by one, it would be 256
        assert residual.item() == 258.0
        assert alone.dtype == added.dtype == torch.bfloat16
