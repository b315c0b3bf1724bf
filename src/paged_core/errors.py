"""Every error this project raises on purpose, as one tree.

A message names the thing, the cause and the remedy; the command line prints it without a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_COMMANDS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
"""What a terminal obeys instead of showing it."""
_BUT_COLOURS = r"(?!\x1b\[[0-9;]*m)"


def printable(text: str, *, keep_colours: bool = False) -> str:
    """Return text in which what would command a terminal is written as Python writes it.

    Names and values of files get into messages, and a file may come from anywhere. Lines end where
    they did.
    """
    pattern = (_BUT_COLOURS if keep_colours else "") + _COMMANDS
    return re.sub(pattern, lambda found: repr(found[0])[1:-1], text)


class PagedCoreError(Exception):
    """Root of the tree: catch this to catch everything the project raises on purpose.

    Its message is :func:`printable`.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


class SettingsError(PagedCoreError):
    """A setting is unknown, contradictory or out of range, or a settings file cannot be read."""


class RequestError(PagedCoreError, ValueError):
    """A request that can never be served; the engine is unchanged and goes on."""


class CheckpointError(PagedCoreError):
    """A model folder or hub id is missing, truncated, or not in a format that may be loaded."""


class UnsupportedModel(PagedCoreError):
    """The checkpoint is sound, but a feature it needs is missing; the message says which."""


class OutOfBlocks(PagedCoreError):
    """Fewer blocks are free than were asked for; nothing was taken."""


class PluginError(PagedCoreError):
    """A plugin is broken, outdated, or claims a name that another plugin already has."""


class EngineError(PagedCoreError):
    """The engine was used in a way that it cannot honour, such as a step after it was closed."""


class ExecutorLost(EngineError):
    """An executor has lost the model and the cache: its process has died, say.

    The engine ends all requests, since what blocks hold is gone, and starts the executor again.
    """


def error_text(error: BaseException) -> str:
    """Return the class of an error and what it says, printable, even if its ``__str__`` raises."""
    try:
        return printable(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - code of a plugin or a user
        return type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or else all of them, to append to a message."""
    names = sorted(known)
    by_key = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), by_key, n=1)
    if close:
        return f"; did you mean {by_key[close[0]]!r}?"
    return f"; there are: {', '.join(names)}" if names else "; there are none"
