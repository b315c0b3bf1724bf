"""A progress bar over requests, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from paged_core.field_rules import refusal

Progress = bool | Callable[..., Iterable[Any]]
"""``True``: show a bar; or what makes one, as ``tqdm`` does: ``bar(items, total=, desc=)``."""


def progress_bar(wanted: Progress) -> Callable[..., Iterable[Any]]:
    """Return what shows a bar that advances as items are taken.

    Raises:
        RequestError: ``wanted`` is neither ``True`` nor a function.
    """
    if wanted is True:
        return _bar
    if not callable(wanted):
        raise refusal("use_tqdm", "be True, False or a function such as tqdm", wanted)
    return wanted


def _bar(items: Iterable[Any], *, total: int, desc: str) -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import track

    return track(items, desc, total=total, console=Console(stderr=True))
