"""Lengths: how long the prompts and the answers are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.amount import Amount, LogNormal
from paged_plugins.workloads.spec_model import SpecModel


class Lengths(SpecModel):
    """Tokens of a prompt of its own (of a turn: what is new in it), and of an answer."""

    prompt: Amount
    output: Amount


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


LengthsSpec = Annotated[Lengths, BeforeValidator(_named)]
"""``sharegpt``, ``alpaca`` or ``{prompt: AMOUNT, output: AMOUNT}``."""
