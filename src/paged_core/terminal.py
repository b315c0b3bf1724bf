"""Text of files as a terminal shows it."""

from __future__ import annotations

import re

COMMANDS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
"""Control characters, which a terminal obeys instead of showing them."""
_BUT_COLOURS = r"(?!\x1b\[[0-9;]*m)"


def printable(text: str, *, keep_colours: bool = False) -> str:
    """Return text in which what would command a terminal is written as Python writes it.

    Names and values of files get into messages, and a file may come from anywhere. Lines end where
    they did.
    """
    pattern = (_BUT_COLOURS if keep_colours else "") + COMMANDS
    return re.sub(pattern, lambda found: repr(found[0])[1:-1], text)
