"""Every error this project raises on purpose, as one tree.

A message names the thing, the cause and the remedy; the command line prints it without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PagedCoreError(Exception):
    """Root of the tree: catch this to catch everything the project raises on purpose."""


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
    """Return the class of an error and what it says, even if its own ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error}"
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
