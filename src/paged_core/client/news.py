"""News that an engine tells a front end: plain data, in process or encoded, at most once a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from paged_core.errors import AdmissionRefused, PluginError, RequestError
from paged_core.sequence import SequenceState
from paged_core.step import TokenLogprobs

Ranked = tuple[int | None, list[int], list[float]]
"""Log-probabilities of one token: the rank of the chosen one, ids, and values beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Gains of one sequence since the last news of it."""

    number: int
    """Number of its request."""
    index: int
    token_ids: list[int]
    logprobs: list[Ranked] | None = None
    """Per token of ``token_ids``."""
    cumulative_logprob: float | None = None
    score: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A request has its first tokens, or has ended without any."""

    number: int
    num_cached: int | None
    """Prompt tokens that the cache served; ``None``: it was never admitted."""
    prompt_logprobs: list[Ranked | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request was not accepted."""

    number: int
    reason: str
    by: Literal["engine", "component", "admission"] = "engine"
    """Component: one that raised over it."""
    retry_after: float | None = None
    """As of :class:`~paged_core.errors.AdmissionRefused`."""

    @classmethod
    def of(cls, number: int, error: RequestError | PluginError) -> Refusal:
        """Return what is told of an error."""
        if isinstance(error, AdmissionRefused):
            after = error.retry_after
            return cls(number=number, reason=str(error), by="admission", retry_after=after)
        is_fault = isinstance(error, PluginError)
        return cls(number=number, reason=str(error), by="component" if is_fault else "engine")

    def error(self) -> RequestError | PluginError:
        """Return the error that :meth:`of` was given."""
        if self.by == "admission":
            return AdmissionRefused(self.reason, self.retry_after)
        return (PluginError if self.by == "component" else RequestError)(self.reason)


@dataclass(frozen=True, slots=True)
class News:
    """Results of a step, or of what was asked. Requests go by the numbers that they came with."""

    numbers: list[int] = field(default_factory=list)
    """Requests whose only sequence gained one token, and nothing else happened to it."""
    token_ids: list[int] = field(default_factory=list)
    """Beside it: that token."""
    starts: list[Start] = field(default_factory=list)
    """These come before what the requests gained."""
    gains: list[Gain] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Requests that have ended, after what they gained."""
    refused: list[Refusal] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.numbers, self.gains, self.ended, self.refused, self.starts))


def gain_of(number: int, sequence: SequenceState, start: int) -> Gain:
    """Return what a sequence gained from its generated token at ``start`` on."""
    ended = sequence.finish_reason
    logprobs = sequence.logprobs
    return Gain(
        number=number,
        index=sequence.index,
        token_ids=sequence.tokens[len(sequence.group.request.prompt) + start :],
        logprobs=None if logprobs is None else [to_ranked(each) for each in logprobs[start:]],
        cumulative_logprob=sequence.cumulative_logprob,
        score=sequence.score,
        finish_reason=None if ended is None else ended.value,
        stop_reason=sequence.stop_reason,
        error=sequence.error,
    )


def to_ranked(logprobs: Mapping[int, float]) -> Ranked:
    """Return the log-probabilities of one token as plain data."""
    return getattr(logprobs, "rank", None), list(logprobs), list(logprobs.values())


def from_ranked(ranked: Ranked) -> dict[int, float]:
    """Return what :func:`to_ranked` was given."""
    rank, token_ids, values = ranked
    logprobs = dict(zip(token_ids, values, strict=True))
    return logprobs if rank is None else TokenLogprobs(logprobs, rank)
