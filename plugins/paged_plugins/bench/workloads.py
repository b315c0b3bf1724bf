"""Workloads that ``bench`` sends to an engine or a server, and options that describe one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Protocol, Self

import typer

from paged_core.errors import SettingsError
from paged_core.interfaces.tokenizer import Tokenizer
from paged_plugins.workloads.batch import NUM_IDS, drawn
from paged_plugins.workloads.request import WorkloadRequest, linked, token_ids
from paged_plugins.workloads.spec import WorkloadSpec
from paged_plugins.workloads.traces.files import TokenCount, estimated_tokens

_SHIFT = 10**17
"""Between the content ids of two repeats: more than any workload has."""


class Workload(Protocol):
    """Named requests."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def requests(self, repeat: int = 0, *, vocab_size: int = NUM_IDS) -> list[WorkloadRequest]:
        """Return the requests of one repeat that follow no other, in arrival order. The ids in
        their prompts are token ids."""


@dataclass(frozen=True, slots=True)
class LabWorkload:
    """The requests of a workload of the lab with their arrivals, drawn with seed 0: what is
    simulated can be sent to a live engine."""

    spec: WorkloadSpec
    count_tokens: TokenCount = estimated_tokens

    @classmethod
    def counted(cls, spec: WorkloadSpec, tokenizer: Tokenizer | None) -> Self:
        """Return one whose texts, if a trace has some, are counted with a model's tokenizer."""
        if tokenizer is None:
            return cls(spec)
        encode = tokenizer.encode
        return cls(spec, lambda text: len(encode(text, add_special_tokens=False)))

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.spec.name

    def requests(self, repeat: int = 0, *, vocab_size: int = NUM_IDS) -> list[WorkloadRequest]:
        """As in :class:`Workload`; repeats differ in their tokens.

        Raises:
            TraceError: a trace is broken.
        """
        shift = repeat * _SHIFT

        def with_tokens(request: WorkloadRequest) -> WorkloadRequest:
            tokens = token_ids(request.shifted(shift), vocab_size)
            return replace(request, prompt=(tuple(tokens),))

        return linked(
            (with_tokens(request), follows)
            for first in self.spec.build(self.count_tokens).draw(0)
            for request, follows in first.links()
        )


NumRequests = Annotated[
    int | None,
    typer.Option(min=1, help="Draw a workload of this many requests, in addition to named ones."),
]
InputLength = Annotated[
    str | None,
    typer.Option(metavar="MIN:MAX", help="Tokens of each prompt of a drawn workload: 128."),
]
OutputLength = Annotated[
    str | None,
    typer.Option(metavar="MIN:MAX", help="Tokens that each of its requests generates: 64."),
]
SharedPrefix = Annotated[
    int | None,
    typer.Option(min=0, help="Additional tokens that all of its prompts share as a prefix: 0."),
]


def drawing(
    num_requests: int | None,
    input_len: str | None,
    output_len: str | None,
    shared_prefix: int | None,
) -> list[Workload]:
    """Return the workload that the options describe; none, if they do not.

    Raises:
        SettingsError: a range is wrong, or the number of requests is missing.
    """
    if num_requests is not None:
        bounds = (_range("input-len", input_len or "128"), _range("output-len", output_len or "64"))
        return [drawn(num_requests, *bounds, shared_prefix or 0)]
    if any(told is not None for told in (input_len, output_len, shared_prefix)):
        raise SettingsError(
            "--input-len, --output-len and --shared-prefix describe a drawn workload; give its "
            "number of requests with --num-requests"
        )
    return []


def _range(option: str, text: str) -> tuple[int, int]:
    """Return both ends of ``MIN:MAX``; a single number is both."""
    parts = text.split(":")
    try:
        low, high = int(parts[0]), int(parts[-1])
    except ValueError:
        low, high = 0, 0
    if len(parts) > 2 or not 1 <= low <= high:
        raise SettingsError(f"--{option} is MIN:MAX, two whole numbers from 1 on, not {text!r}")
    return low, high
