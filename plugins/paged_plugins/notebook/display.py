"""Rows as pandas frames, and pages as elements of a notebook."""

from collections.abc import Iterable
from html import escape
from typing import Any

from paged_core.errors import SettingsError


def frame(rows: Iterable[Any]) -> Any:
    """Return a pandas frame of rows; SettingsError without pandas."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise SettingsError(
            "a frame needs pandas, which is not installed: `pip install 'paged-core[lab]'`"
        ) from None
    return DataFrame(list(rows))


def framed(page: str, height: int) -> str:
    """Return a page as an element of another one, which shares no style with it."""
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe style="{style}" srcdoc="{escape(page)}"></iframe>'
