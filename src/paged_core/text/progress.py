"""A progress bar over requests, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from paged_core.field_rules import refusal

Progress = bool | Callable[..., Iterable[Any]]
"""``True``: show a bar; or what makes one, as ``tqdm`` does: ``bar(items, total=, desc=)``."""


def check_progress(wanted: Progress) -> None:
    """Raise RequestError unless it is one of the two."""
    if not isinstance(wanted, bool) and not callable(wanted):
        raise refusal("use_tqdm", "be True, False or a function such as tqdm", wanted)


def with_progress(items: Iterable[Any], wanted: Progress, total: int) -> Iterable[Any]:
    """Return the items, with a bar that advances as they are taken if that is wanted."""
    if wanted is False:
        return items
    if wanted is not True:
        return wanted(items, total=total, desc="generating")
    from rich.console import Console
    from rich.progress import track

    return track(items, "generating", total=total, console=Console(stderr=True))
