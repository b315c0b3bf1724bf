"""What an engine predicts of a text: log-probabilities of its tokens, and logits.

A window of the text is one request. Its prompt is prefilled through the paged cache, and its
log-probabilities are asked for; the rest is decoded token by token, where a logits processor keeps
the row of logits and lets the next token of the text through. So everything is measured by the
engine's public interface, and later chunks and tokens read what the cache has stored.

Shapes: D decoded tokens of a window, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paged_core.errors import EngineError
from paged_core.llm import LLM
from paged_core.sampling_params import SamplingParams
from paged_core.text.outputs import RequestOutput
from paged_plugins.bench.forced_tokens import ForcedTokens
from paged_plugins.bench.quality_text import Window

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class WindowScores:
    """What an engine predicts of the tokens of a window, from its second token on."""

    prefilled: list[float]
    """Natural log-probabilities of the prompt's tokens but the first."""
    decoded: list[float]
    """Those of the decoded tokens."""
    best_tokens: list[int]
    """The most probable token at each of these places."""
    logits_DV: Tensor  # noqa: N815 - the shape of a tensor is the upper-case end of its name
    """Of the decoded tokens, float32."""


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
