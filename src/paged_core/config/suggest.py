"""The end of a message about a name that is not known."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib.resources import files


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or else all of them, to append to a message."""
    names = sorted(known)
    by_key = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), by_key, n=1)
    if close:
        return f"; did you mean {by_key[close[0]]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"


def spelled_here(word: str, spell: Callable[[str], str], *tables: str) -> str:
    """Return what to write, as ``spell`` spells settings, for an option of another engine."""
    known = tomllib.loads(files(__package__).joinpath("spellings.toml").read_text("utf-8"))
    key = word.lower().replace("-", "_")
    for table in tables or ("settings",):
        if key in known[table]:
            return "; " + re.sub(r"\{([\w.]+)\}", lambda name: spell(name[1]), known[table][key])
    return ""
