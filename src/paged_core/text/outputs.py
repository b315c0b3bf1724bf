"""The outputs of a request: frozen values, in the vocabulary of vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.request import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """The probability that the model gave one token at its place."""

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


_LOWEST_LOGPROB = -9999.0
"""Minus infinity and NaN in JSON, which has neither; the OpenAI server of vLLM uses it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened, in seconds on the engine's clock; ``None``: it has not happened."""

    arrival: float
    first_token: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """The tokens and the text that one sequence of a request gained since the last delta."""

    index: int
    """Its place among the sequences of the request."""
    token_ids: list[int]
    """Generated tokens, the one that ended it included."""
    text: str | None = None
    """Text that no later token takes back; it may lag behind the tokens. Empty with
    ``detokenize=False``; ``None``: there is no tokenizer."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Per token of ``token_ids``, by token id: the generated one first, then the best in order."""
    finish_reason: FinishReason | None = None
    """``None``: it is still running."""
    stop_reason: int | str | None = None
    """The stop token or string that ended it; ``None`` for the model's own end of sequence."""
    error: str | None = None
    """The cause, where the reason is ``error``, ``ignored`` or ``abort``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput(OutputDelta):
    """All of one sequence of a request; until it ends, a stop string may still cut its text."""

    cumulative_logprob: float | None = None
    """Sum over the generated tokens, where log-probabilities were asked for or needed."""
    is_cut: bool = False
    """True if it ended with ``length`` before ``max_tokens``, where the model's length or the cache
    did."""
    score: float | None = None
    """Score by which ``beam_width`` or ``best_of`` ranked the sequences, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request and its outputs so far."""

    request_id: str
    prompt: str | None
    """``None``: it was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """One per sequence, in the order of their index."""
    finished: bool
    """Return whether all sequences are finished."""
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
    """Prompt tokens found in the cache at first admission; ``None``: it was never admitted."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """Per prompt token, where asked for; ``None`` for the first, which nothing predicts."""


def to_json(output: RequestOutput) -> dict[str, Any]:
    """Return the object that ``generate --json`` prints for a request: plain data for JSON.

    ``prompt_logprobs`` is there only where they were asked for.
    """
    row: dict[str, Any] = {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "num_cached_tokens": output.num_cached_tokens,
        "outputs": [_completion_to_json(completion) for completion in output.outputs],
    }
    if output.prompt_logprobs is not None:
        row["prompt_logprobs"] = _logprobs_to_json(output.prompt_logprobs)
    return row


def _completion_to_json(completion: CompletionOutput) -> dict[str, Any]:
    """``score`` is there only where something was ranked."""
    row: dict[str, Any] = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason and completion.finish_reason.value,
        "is_cut": completion.is_cut,
        "error": completion.error,
        "cumulative_logprob": _finite(completion.cumulative_logprob),
        "logprobs": _logprobs_to_json(completion.logprobs),
    }
    if completion.score is not None:
        row["score"] = _finite(completion.score)
    return row


def _logprobs_to_json(entries: Sequence[dict[int, Logprob] | None] | None) -> Any:
    return entries and [
        entry and {str(token_id): _finite(found.logprob) for token_id, found in entry.items()}
        for entry in entries
    ]


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(_LOWEST_LOGPROB, logprob)  # in this order for NaN
