"""How the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal

from paged_core.errors import RequestError

LogitsProcessor = Callable[[Sequence[int], Any], Any]
"""Takes the tokens generated so far and a row of logits (a float32 tensor [vocab_size] that it may
change in place) and returns the row to use. If it raises, the request fails and no other does."""


_Range = tuple[Callable[[Any], bool], str]
"""Whether a value is in the range, and what a message says that it must do."""
_AT_LEAST_1: _Range = (lambda x: x >= 1, "be at least 1")
_NOT_NEGATIVE: _Range = (lambda x: x >= 0, "not be negative")

_COUNTS: Mapping[str, _Range] = {
    "n": _AT_LEAST_1,
    "best_of": _AT_LEAST_1,
    "beam_width": _AT_LEAST_1,
    "top_k": (lambda n: n >= -1, "be at least 1, or 0 to consider all"),  # -1 is the same as 0
    "seed": (lambda n: n >= -1, "not be negative"),  # -1 is the same as None
    "min_tokens": _NOT_NEGATIVE,
    "max_tokens": _AT_LEAST_1,
    "logprobs": _NOT_NEGATIVE,
    "prompt_logprobs": _NOT_NEGATIVE,
}
_OPTIONAL = {"best_of", "beam_width", "seed", "max_tokens", "logprobs", "prompt_logprobs"}
_NUMBERS: Mapping[str, _Range] = {
    "length_penalty": (lambda x: -10 <= x <= 10, "be in [-10, 10]"),
    "temperature": _NOT_NEGATIVE,
    "top_p": (lambda x: 0 < x <= 1, "be in (0, 1]"),
    "min_p": (lambda x: 0 <= x <= 1, "be in [0, 1]"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "be in [-2, 2]"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "be in [-2, 2]"),
    "repetition_penalty": (lambda x: x > 0, "be positive"),
}
_NO_DRAWS = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "seed": None, "best_of": None}
"""What a beam search leaves as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

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
    seed: int | None = None
    """Makes this request's draws repeatable whatever else is in the batch; ``None`` (or -1): no
    seed of its own."""
    stop: Sequence[str] = ()
    """Strings that end a sequence; a single string is accepted."""
    stop_token_ids: Sequence[int] = ()
    """Tokens that end a sequence, besides the model's own."""
    include_stop_str_in_output: bool = False
    """Keep the stop string that ended a sequence in its text."""
    ignore_eos: bool = False
    """Go on past the model's end-of-sequence token."""
    min_tokens: int = 0
    """No end-of-sequence and no stop token or string before this many tokens."""
    max_tokens: int | None = 16
    """Tokens to generate at most; ``None``: as many as the model's length allows."""
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many best ones."""
    prompt_logprobs: int | None = None
    """The same for every token of the prompt but its first."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    logits_processors: Sequence[LogitsProcessor] = ()
    """Called in turn on this request's row of logits before anything else; see the type."""

    def __post_init__(self) -> None:
        for problem in self._wrong_values():
            raise RequestError(problem)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logits_processors", tuple(self.logits_processors))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
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
        """Whether what is returned is only known when all of it has ended."""
        return self.beam_width is not None or self.best_of is not None

    @property
    def needed_logprobs(self) -> int | None:
        """Best tokens to report beside each drawn one; ``None``: no log-probability is needed."""
        return 0 if self.logprobs is None and self.best_of is not None else self.logprobs

    def _wrong_values(self) -> Iterator[str]:
        """Yield what is wrong with a value whatever the others are."""
        for name, (is_in_range, what) in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not _is_a(Integral, value):
                yield f"{name} must be a whole number, not {value!r}"
            elif not is_in_range(value):
                yield f"{name} must {what}, not {value}"
        for name, (is_in_range, what) in _NUMBERS.items():
            value = getattr(self, name)
            if not (_is_a(Real, value) and isfinite(value)):
                yield f"{name} must be a finite number, not {value!r}"
            elif not is_in_range(value):
                yield f"{name} must {what}, not {value}"
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, Iterable) or not all(isinstance(text, str) for text in stop):
            yield f"stop must be a string or a list of strings, not {stop!r}"
        elif not all(stop):
            yield "stop must not contain an empty string"
        ids = self.stop_token_ids
        if not isinstance(ids, Iterable) or not all(_is_a(Integral, token) for token in ids):
            yield f"stop_token_ids must be a list of token ids, not {ids!r}"
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or not all(
            _is_a(Integral, token) and _is_a(Real, value) for token, value in bias.items()
        ):
            yield f"logit_bias must map token ids to numbers, not {bias!r}"
        elif not all(isfinite(value) for value in bias.values()):
            yield "logit_bias must hold finite numbers; to forbid a token, use -100"

    def _contradictions(self) -> Iterator[str]:
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
        drawn = [name for name, value in _NO_DRAWS.items() if getattr(self, name) != value]
        if drawn:
            names = " and ".join(drawn)
            yield f"{names} cannot go with beam_width: beam search draws nothing by chance"
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            yield f"early_stopping must be True, False or 'never', not {self.early_stopping!r}"
        if self.stop:
            yield (
                "stop cannot go with beam_width: beams end at tokens, not at strings; use "
                "stop_token_ids"
            )


def processor_name(processor: LogitsProcessor) -> str:
    """Return what messages call a logits processor."""
    return str(getattr(processor, "__qualname__", type(processor).__qualname__))


def _is_a(kind: type, value: object) -> bool:
    """Whether a number is of a kind, as NumPy's are; a truth value is no number."""
    return isinstance(value, kind) and not isinstance(value, bool)
