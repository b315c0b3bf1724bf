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


_COUNTS = ("n", "top_k", "min_tokens")
_OPTIONAL_COUNTS = (
    *("best_of", "beam_width", "max_tokens", "seed"),
    *("logprobs", "prompt_logprobs"),
)
_NUMBERS = (
    *("temperature", "top_p", "min_p", "length_penalty"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)

_RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "n": (lambda n: n >= 1, "be at least 1"),
    "temperature": (lambda x: x >= 0, "not be negative"),
    "top_k": (lambda n: n >= 0, "be at least 1, or 0 to consider all"),
    "top_p": (lambda x: 0 < x <= 1, "be in (0, 1]"),
    "min_p": (lambda x: 0 <= x <= 1, "be in [0, 1]"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "be in [-2, 2]"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "be in [-2, 2]"),
    "repetition_penalty": (lambda x: x > 0, "be positive"),
    "max_tokens": (lambda n: n >= 1, "be at least 1"),
    "seed": (lambda n: n >= 0, "not be negative"),
    "min_tokens": (lambda n: n >= 0, "not be negative"),
    "logprobs": (lambda n: n >= 0, "not be negative"),
    "prompt_logprobs": (lambda n: n >= 0, "not be negative"),
}
"""Whether a value that is not None is in its range, and what the range is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    The names are those of vLLM and of the OpenAI API. The default is greedy (``temperature=0``):
    a run says nothing about chance unless it asks for it.

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
        for problem in self._wrong_types():
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
        for problem in self._problems():
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

    def _wrong_types(self) -> Iterator[str]:
        for name in _COUNTS + _OPTIONAL_COUNTS:
            value = getattr(self, name)
            if not _is_a(Integral, value) and not (value is None and name in _OPTIONAL_COUNTS):
                yield f"{name} must be a whole number, not {value!r}"
        for name in _NUMBERS:
            if not _is_a(Real, value := getattr(self, name)):
                yield f"{name} must be a number, not {value!r}"
        if not isinstance(self.stop, Iterable) or not all(isinstance(s, str) for s in self.stop):
            yield f"stop must be a string or a list of strings, not {self.stop!r}"
        ids = self.stop_token_ids
        if not isinstance(ids, Iterable) or not all(_is_a(Integral, token) for token in ids):
            yield f"stop_token_ids must be a list of token ids, not {ids!r}"
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or not all(
            _is_a(Integral, token) and _is_a(Real, value) for token, value in bias.items()
        ):
            yield f"logit_bias must map token ids to numbers, not {bias!r}"

    def _problems(self) -> list[str]:
        checks = [
            (not isfinite(value), f"{name} must be a finite number, not {value}")
            for name, value in ((name, getattr(self, name)) for name in _NUMBERS)
        ]
        checks += [
            (not is_valid(value), f"{name} must {what}, not {value}")
            for name, (is_valid, what) in _RANGES.items()
            if (value := getattr(self, name)) is not None
        ]
        checks += [
            (
                self.max_tokens is not None and self.min_tokens > self.max_tokens,
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})",
            ),
            (any(not text for text in self.stop), "stop must not contain an empty string"),
            (
                any(not isfinite(bias) for bias in self.logit_bias.values()),
                "logit_bias must hold finite numbers; to forbid a token, use -100",
            ),
        ]
        checks += (
            self._checks_of_beams() if self.beam_width is not None else self._checks_of_draws()
        )
        return [problem for wrong, problem in checks if wrong]

    def _checks_of_draws(self) -> list[tuple[bool, str]]:
        best_of = self.best_of
        return [
            (
                self.length_penalty != 1 or self.early_stopping is not False,
                "length_penalty and early_stopping belong to beam search; set beam_width too",
            ),
            (
                best_of is not None and best_of < self.n,
                f"best_of ({best_of}) is smaller than n ({self.n})",
            ),
            (
                best_of is not None and best_of > 1 and self.temperature == 0,
                f"best_of={best_of} sequences are all the same with temperature=0; raise it",
            ),
        ]

    def _checks_of_beams(self) -> list[tuple[bool, str]]:
        width = self.beam_width or 0
        sampled = {
            "temperature": self.temperature != 0,
            "top_k": self.top_k != 0,
            "top_p": self.top_p != 1,
            "min_p": self.min_p != 0,
            "seed": self.seed is not None,
            "best_of": self.best_of is not None,
        }
        drawn = [name for name, given in sampled.items() if given]
        return [
            (width < 1, f"beam_width must be at least 1, not {width}"),
            (self.n > width, f"n ({self.n}) is larger than beam_width ({width})"),
            (
                bool(drawn),
                f"{' and '.join(drawn)} cannot go with beam_width: beam search draws nothing by "
                "chance",
            ),
            (
                not -10 <= self.length_penalty <= 10,
                f"length_penalty must be in [-10, 10], not {self.length_penalty}",
            ),
            (
                not isinstance(self.early_stopping, bool) and self.early_stopping != "never",
                f"early_stopping must be True, False or 'never', not {self.early_stopping!r}",
            ),
            (
                bool(self.stop),
                "stop cannot go with beam_width: beams end at tokens, not at strings; use "
                "stop_token_ids",
            ),
        ]


def processor_name(processor: LogitsProcessor) -> str:
    """Return what messages call a logits processor."""
    return str(getattr(processor, "__qualname__", type(processor).__qualname__))


def _is_a(kind: type, value: object) -> bool:
    """Whether a number is of a kind, as NumPy's are; a truth value is no number."""
    return isinstance(value, kind) and not isinstance(value, bool)
