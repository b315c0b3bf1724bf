"""The options that describe a drawn workload, as several commands take them."""

from __future__ import annotations

from typing import Annotated

import typer

from paged_core.errors import SettingsError
from paged_plugins.bench.workloads import Workload, drawn

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
) -> Workload | None:
    """Return the workload that the options describe, if they do.

    Raises:
        SettingsError: a range is wrong, or the number of requests is missing.
    """
    if num_requests is not None:
        bounds = (_range("input-len", input_len or "128"), _range("output-len", output_len or "64"))
        return drawn(num_requests, *bounds, shared_prefix or 0)
    if any(told is not None for told in (input_len, output_len, shared_prefix)):
        raise SettingsError(
            "--input-len, --output-len and --shared-prefix describe a drawn workload; give its "
            "number of requests with --num-requests"
        )
    return None


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
