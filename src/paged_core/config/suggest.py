"""The end of a message about a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or else all of them, to append to a message."""
    names = sorted(known)
    by_key = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), by_key, n=1)
    if close:
        return f"; did you mean {by_key[close[0]]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"
