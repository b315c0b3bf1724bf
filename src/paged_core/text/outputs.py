"""What a request came to: frozen values, in the vocabulary of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paged_core.request import FinishReason

_LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say; the OpenAI server of vLLM uses it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """When things happened, in seconds on the engine's clock; ``None``: it has not happened."""

    arrival: float
    first_token: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One of the sequences that a request asked for."""

    index: int
    """Its place among them."""
    token_ids: list[int]
    """Generated tokens, the one that ended it included."""
    text: str | None = None
    """``None``: the checkpoint has no tokenizer."""
    cumulative_logprob: float | None = None
    """Sum over the generated tokens, where log-probabilities were asked for, or needed for what
    was."""
    score: float | None = None
    """What the sequences were ranked by, under ``beam_width`` or ``best_of``; the best is first."""
    logprobs: list[dict[int, float]] | None = None
    """Per generated token, by token id: the generated one first, then the best in order."""
    finish_reason: FinishReason | None = None
    """``None``: it is still running."""
    stop_reason: int | str | None = None
    """The stop token or string that ended it; ``None`` for the model's own end of sequence."""
    error: str | None = None
    """What went wrong, where the reason is ``error``, ``ignored`` or ``abort``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDelta:
    """What one sequence gained since it was last looked at."""

    index: int
    """Its place among the sequences of the request."""
    token_ids: list[int]
    text: str | None = None
    """Text that no later token takes back; it may lag behind the tokens. ``None``: there is no
    tokenizer."""
    logprobs: list[dict[int, float]] | None = None
    """Beside ``token_ids``, as in :class:`CompletionOutput`."""
    finish_reason: FinishReason | None = None
    """``None``: it is still running."""
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request and what it has come to so far."""

    request_id: str
    prompt: str | None
    """``None``: it was given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """One per sequence, in the order of their index."""
    finished: bool
    """Whether all of them are."""
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
    """Prompt tokens found in the cache at first admission; ``None``: it was never admitted."""
    prompt_logprobs: list[dict[int, float] | None] | None = None
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
        row["prompt_logprobs"] = [
            entry and _logprobs_to_json(entry) for entry in output.prompt_logprobs
        ]
    return row


def _completion_to_json(completion: CompletionOutput) -> dict[str, Any]:
    """``score`` is there only where something was ranked."""
    row: dict[str, Any] = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason and completion.finish_reason.value,
        "error": completion.error,
        "cumulative_logprob": _finite(completion.cumulative_logprob),
        "logprobs": completion.logprobs
        and [_logprobs_to_json(entry) for entry in completion.logprobs],
    }
    if completion.score is not None:
        row["score"] = _finite(completion.score)
    return row


def _logprobs_to_json(entry: dict[int, float]) -> dict[str, float | None]:
    return {str(token_id): _finite(logprob) for token_id, logprob in entry.items()}


def _finite(logprob: float | None) -> float | None:
    if logprob is None:
        return None
    return logprob if logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB  # NaN is no more than that
