"""Log-probabilities as they are returned: with the rank and the text of each token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paged_core.interfaces.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """How probable the model found one token at its place."""

    logprob: float
    """Natural logarithm of its probability."""
    rank: int | None = None
    """1 for the most probable token; ``None``: the executor does not tell."""
    decoded_token: str | None = None
    """Its text on its own; ``None``: there is no tokenizer, or ``detokenize=False``."""


class TokenTexts(dict[int, str]):
    """The text of single tokens, special ones included; each is decoded once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text


def with_ranks(
    logprobs: Mapping[int, float], texts: Mapping[int, str] | None
) -> dict[int, Logprob]:
    """Return what an executor reported of one token: the chosen one first, then the best."""

    def found(token_id: int, logprob: float, rank: int | None) -> Logprob:
        return Logprob(logprob, rank, None if texts is None else texts[token_id])

    (chosen, value), *best = logprobs.items()
    rank: int | None = getattr(logprobs, "rank", None)
    result = {chosen: found(chosen, value, rank)}
    for place, (token_id, logprob) in enumerate(best, 1):
        is_behind = logprob <= value if rank is None else rank <= place
        result[token_id] = found(token_id, logprob, place + is_behind)
    return result
