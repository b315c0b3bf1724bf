"""A request, and why its sequences end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from paged_core.field_rules import (
    MOST,
    Rule,
    apply_rules,
    finite,
    instance,
    optional,
    text,
    token_ids,
    whole,
)
from paged_core.sampling_params import LogitsProcessor, SamplingParams

__all__ = ["FinishReason", "LogitsProcessor", "Request", "SamplingParams"]


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string was generated."""
    LENGTH = "length"
    """The limit of ``max_tokens``, of the model's length, or of the whole cache was reached."""
    ABORT = "abort"
    """The user aborted it."""
    ERROR = "error"
    """Something that served it raised; the message is beside it."""
    IGNORED = "ignored"
    """The scheduler found that it can never run."""


PRIORITY = whole(-MOST, f"be at least {-MOST}")
_RULES: Mapping[str, Rule] = {
    "id": text,
    "prompt": token_ids,
    "sampling": instance(SamplingParams, "SamplingParams(...)"),
    "priority": PRIORITY,
    "arrival": finite,
    "cache_salt": optional(text),
    "tenant": text,
    "session": text,
    "deadline": optional(finite),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt, and all that a component may want to know about it.

    Raises:
        RequestError: a field has the wrong type, or is a number out of range.
    """

    id: str
    prompt: tuple[int, ...]
    """Token ids; never empty. ``sampling.truncate_prompt_tokens`` keeps the last ones."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    """Lower runs first, where the queue order looks at it."""
    arrival: float = 0.0
    """Seconds on the engine's clock."""
    cache_salt: str | None = None
    """Cached blocks are shared only among requests of equal salt."""
    tenant: str = ""
    """The user or customer it belongs to, for fair queue orders."""
    session: str = ""
    """The conversation that it belongs to, for routers of several engines; empty: ``tenant``."""
    deadline: float | None = None
    """Seconds on the engine's clock by which it wants to be finished."""

    def __post_init__(self) -> None:
        apply_rules(self, _RULES)
        limit = self.sampling.truncate_prompt_tokens
        if limit is not None and limit > 0:
            object.__setattr__(self, "prompt", self.prompt[-limit:])

    @property
    def least_length(self) -> int:
        """Tokens of the prompt, and the one to be generated.

        That one does not count where the log-probabilities of the prompt are all that is asked for:
        it is never computed.
        """
        sampling = self.sampling
        scores = sampling.max_tokens == 1 and sampling.prompt_logprobs is not None
        return len(self.prompt) + (not scores)
