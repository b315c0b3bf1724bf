"""Lengths: how long the prompts and the answers are."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.amount import Amount, LogNormal
from paged_plugins.workloads.spec_model import SpecModel
from paged_plugins.workloads.traces.token_count import TokenCount
from paged_plugins.workloads.traces.trace import TraceSpec
from paged_plugins.workloads.traces.trace_lines import TraceError

LengthDraw = Callable[[float, float], tuple[int, int]]
"""From two shares (0 to 1, below 1), tokens of a prompt and of its answer."""
_MOST_PAIRS = 1_000_000


class Lengths(SpecModel):
    """Tokens of a prompt of its own (of a turn: what is new in it), and of an answer."""

    prompt: Amount
    output: Amount

    def sampler(self, count_tokens: TokenCount) -> LengthDraw:
        """Return what draws them, independently of each other."""
        prompt, output = self.prompt.whole, self.output.whole
        return lambda first, second: (prompt(first), output(second))


class TraceLengths(SpecModel):
    """Those of the requests of a trace, each as likely as the others."""

    trace: TraceSpec

    def sampler(self, count_tokens: TokenCount) -> LengthDraw:
        """Return what draws the two lengths of a request of the trace.

        The first million of its requests are read now.

        Raises:
            TraceError: the trace is broken, or has no request.
        """
        families = self.trace.requests(count_tokens)
        requests = (request for first in families for request in first.family())
        lengths = array("q")
        for request in islice(requests, _MOST_PAIRS):
            lengths.extend((request.num_new, request.output))
        num_pairs = len(lengths) // 2
        if not num_pairs:
            raise TraceError(self.trace.file, None, "there is no request in it")

        def draw(first: float, _: float) -> tuple[int, int]:
            place = 2 * int(first * num_pairs)
            return lengths[place], lengths[place + 1]

        return draw


NAMED_LENGTHS = {
    "sharegpt": Lengths(
        prompt=LogNormal(median=98.52, sigma=1.2, min=4, max=1024),
        output=LogNormal(median=317.28, sigma=1.0, min=4, max=1024),
    ),
    "alpaca": Lengths(
        prompt=LogNormal(median=17.02, sigma=0.5, min=4, max=256),
        output=LogNormal(median=37.25, sigma=1.0, min=1, max=512),
    ),
}
"""Log-normal distributions with the mean lengths that the paper of PagedAttention publishes (Kwon
et al., SOSP 2023, Figure 11): ShareGPT 161.31 tokens in and 337.99 out, Alpaca 19.31 and 58.45.

The means are published, the spread and the bounds are not. ``sigma`` is our choice. The bounds of
ShareGPT are those to which benchmarks cut it: prompts of 4 to 1,024 tokens, 2,048 in all. The
medians follow from these: with them, the mean between the bounds is the published one."""


def _named(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in NAMED_LENGTHS:
        names = ", ".join(NAMED_LENGTHS)
        raise PydanticCustomError("lengths", f"there are {names}, and `{{prompt: 64, output: 16}}`")
    return NAMED_LENGTHS[value]


def _source(value: Any) -> str:
    traced = "trace" in value if isinstance(value, Mapping) else isinstance(value, TraceLengths)
    return "trace" if traced else "amounts"


LengthsSpec = Annotated[
    Annotated[Lengths, Tag("amounts")] | Annotated[TraceLengths, Tag("trace")],
    Discriminator(_source),
    BeforeValidator(_named),
]
"""``sharegpt``, ``alpaca``, ``{prompt: AMOUNT, output: AMOUNT}`` or ``{trace: trace.csv}``."""
