"""Parameters of a request: the choice of its tokens, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from paged_core.errors import RequestError
from paged_core.field_rules import (
    Rule,
    apply_rules,
    biases,
    flag,
    listed,
    optional,
    real,
    shown,
    texts,
    token_ids,
    token_sequences,
    whole,
)
from paged_core.structured_outputs import StructuredOutputs, structured_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """A beam search that returns as many sequences as it has beams; the names are vLLM's."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def sampling(self) -> SamplingParams:
        """Return the same as sampling parameters.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(**asdict(self)).clone(n=self.beam_width)


LogitsProcessor = Callable[[Sequence[int], Any], Any]
"""Takes the tokens generated so far and a row of logits (a float32 tensor [vocab_size] that it may
change in place) and returns the row to use. If it raises, the request fails and no other does."""


_MAX_SEQS = 16384
"""Sequences of a request at most, as in vLLM."""

_COUNT = whole(1, "be at least 1")
_WIDTH = whole(1, "be at least 1", _MAX_SEQS)
_LOGPROBS = optional(whole(-1, "be at least 0, or -1 for the whole vocabulary"))
_PENALTY = real(lambda x: -2 <= x <= 2, "be in [-2, 2]")
_RULES: Mapping[str, Rule] = {
    "n": _WIDTH,
    "best_of": optional(_WIDTH),
    "beam_width": optional(_WIDTH),
    "length_penalty": real(lambda x: -10 <= x <= 10, "be in [-10, 10]"),
    "temperature": real(lambda x: x >= 0, "not be negative"),
    "top_k": whole(-1, "be at least 1, or 0 to consider all"),  # -1 is the same as 0
    "top_p": real(lambda x: 0 < x <= 1, "be in (0, 1]"),
    "min_p": real(lambda x: 0 <= x <= 1, "be in [0, 1]"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": real(lambda x: 1e-30 <= x <= 1e30, "be positive, from 1e-30 to 1e30"),
    "logit_bias": biases,
    "allowed_token_ids": optional(token_ids),
    "bad_words": texts,
    "bad_words_ids": token_sequences,
    "seed": optional(whole(-1, "not be negative", 2**64 - 1)),  # -1 is the same as None
    "stop": texts,
    "stop_token_ids": token_ids,
    "include_stop_str_in_output": flag,
    "stop_outside": texts,
    "ignore_eos": flag,
    "min_tokens": whole(0, "not be negative"),
    "max_tokens": optional(_COUNT),
    "truncate_prompt_tokens": optional(
        whole(-1, "be at least 1, or -1 for as many as the model takes")
    ),
    "logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
    "detokenize": flag,
    "skip_special_tokens": flag,
    "shown_token_ids": token_ids,
    "logits_processors": listed(callable, "a list of functions"),
    "structured_outputs": structured_outputs,
}
_NO_SAMPLING = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "seed": None, "best_of": None}
"""Parameters that a beam search leaves as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters that say how the tokens of one request are chosen and when it ends.

    The names are those of vLLM and of the OpenAI API. The default is greedy (``temperature=0``).

    Raises:
        RequestError: a value is out of range or two of them contradict each other.
    """

    n: int = 1
    """Sequences to generate; they share the blocks of the prompt."""
    best_of: int | None = None
    """Sample this many sequences and return the ``n`` of the largest mean log-probability, best
    first. (vLLM V0 compared cumulative log-probabilities, which prefers short ones.)"""
    beam_width: int | None = None
    """Search with this many beams and return the ``n`` best that ended; ``None``: do not search."""
    length_penalty: float = 1.0
    """With beams: a sequence scores its log-probability over its generated length to this power."""
    early_stopping: bool | Literal["never"] = False
    """With beams, once as many sequences have ended: ``True``: stop; ``False``: go on while the
    best beam is better than the worst of them, ``"never"``: while it could still become so."""
    temperature: float = 0.0
    """0 is greedy; above, logits are divided by it before sampling."""
    top_k: int = 0
    """Sample among this many best tokens; 0 (or -1): among all."""
    top_p: float = 1.0
    """Sample among the fewest tokens whose probabilities reach this sum."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the best one's probability."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token generated so far."""
    frequency_penalty: float = 0.0
    """Subtracted once per time that a token was generated so far."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    allowed_token_ids: Sequence[int] | None = None
    """The only tokens that may be generated; ``None``: all."""
    bad_words: Sequence[str] = ()
    """Words that are not generated: neither their tokens nor those they have after a space."""
    bad_words_ids: Sequence[Sequence[int]] = ()
    """Token ids that do not follow each other in the output: what ``bad_words`` turn into."""
    seed: int | None = None
    """Makes this request's samples repeatable whatever else is in the batch; ``None`` (or -1): no
    seed of its own."""
    stop: Sequence[str] = ()
    """Strings that end a sequence; a single string is accepted."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end a sequence, besides the model's own."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended a sequence in its text."""
    stop_outside: Sequence[str] = ()
    """Marks between which stop strings do not count where the text begins with the first, such as
    ``("<think>", "</think>")``; one mark: the text begins within, and this ends it."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence token."""
    min_tokens: int = 0
    """No end-of-sequence and no stop token or string before this many tokens."""
    max_tokens: int | None = 16
    """Tokens to generate at most; ``None``: as many as the model's length allows."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens of the prompt, the last ones; -1: as many as the model takes."""
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many best ones; -1: of all."""
    prompt_logprobs: int | None = None
    """The same for every token of the prompt but its first."""
    detokenize: bool = True
    """Turn the tokens into text; otherwise it is empty."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    shown_token_ids: Sequence[int] = ()
    """Special tokens that are in the text all the same, such as marks of calls."""
    logits_processors: Sequence[LogitsProcessor] = ()
    """Called in turn on this request's row of logits before anything else; see the type."""
    structured_outputs: StructuredOutputs | None = None
    """The form that each sequence must have when it ends by itself."""

    def __post_init__(self) -> None:
        apply_rules(self, _RULES)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        for problem in self._contradictions():
            raise RequestError(problem)

    @property
    def width(self) -> int:
        """Sequences that run side by side."""
        return self.beam_width or self.best_of or self.n

    @property
    def chooses_at_end(self) -> bool:
        """Return whether the outputs are known only when all sequences have ended."""
        return self.beam_width is not None or self.best_of is not None

    @property
    def without_effect(self) -> dict[str, Any]:
        """Names of parameters that ask for chance although the best token is always taken."""
        if self.temperature > 0 or self.beam_width is not None:
            return {}
        neutral = {"n": 1, "top_k": 0, "top_p": 1, "min_p": 0}
        return {name: value for name in neutral if (value := getattr(self, name)) != neutral[name]}

    def clone(self, **changes: Any) -> Self:
        """Return a copy with some parameters changed; they cannot be changed in place.

        Raises:
            RequestError: a value is out of range or contradicts another one.
        """
        return replace(self, **changes)

    @property
    def needed_logprobs(self) -> int | None:
        """Best tokens to report beside each sampled one; ``None``: no log-probability is needed."""
        return 0 if self.logprobs is None and self.best_of is not None else self.logprobs

    def _contradictions(self) -> Iterator[str]:
        if self.stop and not self.detokenize:
            yield "stop strings are looked for in the text; drop detokenize=False or stop"
        if len(self.stop_outside) > 2:
            yield "stop_outside has more than two marks, the one that begins and the one that ends"
        if self.truncate_prompt_tokens == 0:
            yield "truncate_prompt_tokens is 0, which leaves no prompt; keep at least 1 token"
        if self.allowed_token_ids == ():
            yield "allowed_token_ids is empty, so that no token may be generated; None allows all"
        stopping = self.early_stopping
        if not isinstance(stopping, bool | str) or stopping not in (True, False, "never"):
            yield f"early_stopping must be True, False or 'never', not {shown(stopping)}"
        if self.structured_outputs is not None and self.ignore_eos:
            yield ("ignore_eos goes on past the end that structured_outputs sets; drop one of them")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            yield f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})"
        if self.beam_width is not None:
            yield from self._contradictions_of_beams(self.beam_width)
        elif self.length_penalty != 1 or self.early_stopping is not False:
            yield "length_penalty and early_stopping belong to beam search; set beam_width too"
        elif self.best_of is not None:
            if self.best_of < self.n:
                yield f"best_of ({self.best_of}) is smaller than n ({self.n})"
            if self.best_of > 1 and self.temperature == 0:
                yield (
                    f"best_of={self.best_of} sequences are all the same with temperature=0; "
                    "raise it"
                )

    def _contradictions_of_beams(self, width: int) -> Iterator[str]:
        if self.n > width:
            yield f"n ({self.n}) is larger than beam_width ({width})"
        sampled = [name for name, value in _NO_SAMPLING.items() if getattr(self, name) != value]
        if sampled:
            names = " and ".join(sampled)
            yield f"{names} cannot go with beam_width: beam search samples nothing by chance"
        if self.structured_outputs is not None:
            yield "structured_outputs cannot go with beam_width: guided decoding has no beams"
        if self.stop:
            yield (
                "stop cannot go with beam_width: beams end at tokens, not at strings; use "
                "stop_token_ids"
            )


def processor_name(processor: LogitsProcessor) -> str:
    """Return what messages call a logits processor."""
    return str(getattr(processor, "__qualname__", type(processor).__qualname__))
