"""Predictions of engines for a text: log-probabilities, logits, and how far they are apart.

A window of the text is one request. Its prompt is prefilled through the paged cache, and its
log-probabilities are asked for; the rest is decoded token by token, where a logits processor keeps
the row of logits and lets the next token of the text through. So everything is measured by the
engine's public interface, and later chunks and tokens read what the cache has stored.

Shapes: D decoded tokens of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from paged_core.errors import EngineError
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.text.outputs import RequestOutput
from paged_plugins.bench.quality_engines import SIDE_BY_SIDE, Window
from paged_plugins.progress import Advance

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_LOGARITHM = 700.0
"""Logarithm of a perplexity: of more there is no floating-point number."""
_MAX_LOGITS = 1 << 26
"""Held at once of an engine, beside as many of the base: 256 MiB."""


@dataclass(frozen=True, slots=True)
class WindowScores:
    """Predictions of an engine for the tokens of a window, from its second token on."""

    prefilled: list[float]
    """Natural log-probabilities of the prompt's tokens but the first."""
    decoded: list[float]
    """Log-probabilities of the decoded tokens."""
    best_tokens: list[int]
    """The most probable token at each of these places."""
    logits_DV: Tensor  # noqa: N815 - the shape of a tensor is the upper-case end of its name
    """Logits of the decoded tokens, float32."""


def score(llm: LLM, windows: Sequence[Window]) -> list[WindowScores]:
    """Run windows side by side.

    Raises:
        EngineError: a request failed; the message says why.
        RequestError: a window does not fit the engine.
    """
    processors = [ForcedTokens(window.decoded) for window in windows]
    sampling = [
        SamplingParams(
            max_tokens=len(window.decoded),
            ignore_eos=True,
            detokenize=False,
            prompt_logprobs=1,
            logits_processors=[processor],
        )
        for window, processor in zip(windows, processors, strict=True)
    ]
    outputs = llm.generate([window.prompt for window in windows], sampling)
    return [
        _scores(window, output, processor)
        for window, output, processor in zip(windows, outputs, processors, strict=True)
    ]


def _scores(window: Window, output: RequestOutput, processor: ForcedTokens) -> WindowScores:
    (sequence,) = output.outputs
    if sequence.token_ids != window.decoded:
        raise EngineError(
            f"a window of {len(window.tokens)} tokens ended after {len(sequence.token_ids)} of "
            f"{len(window.decoded)} decoded tokens ({sequence.finish_reason}): "
            f"{sequence.error or 'it may lack blocks; raise num_blocks'}"
        )
    entries = [entry for entry in output.prompt_logprobs or () if entry is not None]
    logits_DV = processor.logits_DV  # noqa: N806
    chosen = logits_DV.new_tensor(window.decoded).long()
    decoded = logits_DV.log_softmax(1).gather(1, chosen[:, None])[:, 0]
    best = [max(entry, key=lambda token: entry[token].logprob) for entry in entries]
    return WindowScores(
        [entry[token].logprob for entry, token in zip(entries, window.prompt[1:], strict=True)],
        decoded.tolist(),
        best + logits_DV.argmax(1).tolist(),
        logits_DV,
    )


class ForcedTokens:
    """A logits processor that makes a request generate the given tokens, and keeps its logits."""

    logits_DV: Tensor  # noqa: N815 - as in WindowScores
    """Logits of all tokens, once the request has ended."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def __call__(self, output: Sequence[int], logits: Tensor, /) -> Tensor:
        place = len(output)
        if place == 0:
            self.logits_DV = logits.new_empty(len(self._tokens), len(logits), device="cpu")
        self.logits_DV[place] = logits
        forced = logits.new_full(logits.shape, -inf)
        forced[self._tokens[place]] = 0
        return forced


@dataclass(frozen=True, slots=True)
class RowDifference:
    """Distance of two rows of logits [V]."""

    mean: float
    """Mean of the absolute differences."""
    largest: float
    divergence: float
    """Kullback-Leibler divergence of the row from the base's, in nats."""

    @classmethod
    def between(cls, base: Tensor, other: Tensor) -> RowDifference:
        """Compare in float64: the divergence of close rows is near the rounding of float32."""
        base, other = base.double(), other.double()
        apart = (base - other).abs()
        expected = base.log_softmax(0)
        divergence = (expected.exp() * (expected - other.log_softmax(0))).sum()
        return cls(float(apart.mean()), float(apart.max()), max(0.0, float(divergence)))


@dataclass(slots=True)
class Tally:
    """Collects what one engine predicts, window by window."""

    prefilled: list[float] = field(default_factory=list)
    decoded: list[float] = field(default_factory=list)
    num_same: int = 0
    """Places where the base's best token is the best here."""
    differences: list[RowDifference] = field(default_factory=list)
    """Difference at each decoded token."""

    def add(self, scores: WindowScores, base: WindowScores) -> None:
        """Take the scores of a window, and those of the base of the same window."""
        self.prefilled += scores.prefilled
        self.decoded += scores.decoded
        pairs = zip(scores.best_tokens, base.best_tokens, strict=True)
        self.num_same += sum(ours == theirs for ours, theirs in pairs)
        if scores is not base:
            self.differences += map(RowDifference.between, base.logits_DV, scores.logits_DV)

    @property
    def _logprobs(self) -> list[float]:
        return self.prefilled + self.decoded

    def figures(self) -> dict[str, Any]:
        """Return perplexities."""
        return {
            "perplexity": _perplexity(self._logprobs),
            "perplexity_prefilled": _perplexity(self.prefilled),
            "perplexity_decoded": _perplexity(self.decoded),
        }

    def figures_beside(self, base: Tally) -> dict[str, Any]:
        """Return perplexities, and how far all is from the base."""
        found = self.figures()
        count = len(self._logprobs)
        rows = self.differences
        return found | {
            "perplexity_ratio": _rounded(found["perplexity"] / base.figures()["perplexity"]),
            "perplexity_ratio_error": _ratio_error(self._logprobs, base._logprobs),
            "logprob_difference_prefilled": _mean_difference(self.prefilled, base.prefilled),
            "logprob_difference_decoded": _mean_difference(self.decoded, base.decoded),
            "logit_difference_mean": _rounded(fmean(row.mean for row in rows)),
            "logit_difference_max": _rounded(max(row.largest for row in rows)),
            "divergence_mean": _rounded(fmean(row.divergence for row in rows)),
            "divergence_max": _rounded(max(row.divergence for row in rows)),
            "same_best_token": _rounded(self.num_same / count),
        }


def _perplexity(logprobs: list[float]) -> float | None:
    return _rounded(exp(min(-fmean(logprobs), _LARGEST_LOGARITHM))) if logprobs else None


def _ratio_error(ours: list[float], theirs: list[float]) -> float:
    """Return how far the ratio of perplexities may be off at 95%, from the tokens' differences."""
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    return _rounded(1.96 * stdev(differences) / sqrt(len(differences)))


def _mean_difference(ours: list[float], theirs: list[float]) -> float | None:
    """Return the mean absolute difference."""
    if not ours:
        return None
    return _rounded(fmean(abs(one - other) for one, other in zip(ours, theirs, strict=True)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def compare_predictions(
    base: LLM, others: Mapping[str, LLM], windows: Sequence[Window], advance: Advance
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures of the base, and those of each other engine beside it.

    A few windows at a time pass through all engines, so that no more logits are held than theirs.

    Args:
        advance: called with the windows that an engine has served.

    Raises:
        EngineError: a window failed.
    """
    own, tallies = Tally(), {name: Tally() for name in others}
    for group in _groups(base, windows):
        expected = score(base, group)
        advance(len(group))
        for scores in expected:
            own.add(scores, scores)
        for name, llm in others.items():
            for scores, wanted in zip(score(llm, group), expected, strict=True):
                tallies[name].add(scores, wanted)
            advance(len(group))
    rows = [{"name": name} | tally.figures_beside(own) for name, tally in tallies.items()]
    return own.figures(), rows


def _groups(llm: LLM, windows: Sequence[Window]) -> Iterator[Sequence[Window]]:
    """Yield windows to be served side by side."""
    num_logits = len(windows[0].decoded) * (llm.engine.capacity.vocab_size or 1)
    size = max(1, min(SIDE_BY_SIDE, _MAX_LOGITS // num_logits))
    for start in range(0, len(windows), size):
        yield windows[start : start + size]
