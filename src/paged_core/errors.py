"""Errors raised on purpose, as one tree: messages name the thing, the cause and the remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from traceback import format_exception, walk_tb
from types import FrameType

from paged_core.terminal import printable


class PagedCoreError(Exception):
    """Root of the tree: catch it to catch all raised on purpose. Its message is printable."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(arg) if isinstance(arg, str) else arg for arg in args))


class SettingsError(PagedCoreError):
    """A setting is unknown, contradictory or out of range, or a settings file cannot be read."""


class RequestError(PagedCoreError, ValueError):
    """A request that is not served, most often since it never can be; the engine is unchanged."""


class AdmissionRefused(RequestError):
    """A request that the engine's ``admission`` has refused, and that may be served later.

    Args:
        retry_after: seconds after which it may be accepted; ``None``: not known, or never.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CheckpointError(PagedCoreError):
    """A model folder or hub id is missing, truncated, or not in a format that may be loaded."""


class UnsupportedModel(PagedCoreError):
    """The checkpoint is sound, but a feature it needs is missing; the message says which.

    Args:
        elsewhere: end of the message that names other components, which ``auto`` has tried.
    """

    def __init__(self, message: str, elsewhere: str = "") -> None:
        super().__init__(message + elsewhere)
        self.problem = printable(message)


class OutOfBlocks(PagedCoreError):
    """Fewer blocks are free than were asked for; nothing was taken."""


class PluginError(PagedCoreError):
    """A plugin is broken, outdated, or claims a name that another plugin already has."""


class EngineError(PagedCoreError):
    """The engine was used in a way that it cannot honour, such as a step after it was closed."""


class EngineLost(EngineError):
    """The engine ended while it served a request, of whose answer a part was read already."""


class ExecutorLost(EngineError):
    """An executor has lost the model and the cache: its process has died, say.

    The engine ends all requests, since what blocks hold is gone, and starts the executor again.
    """


def blame(error: BaseException, slot: str, component: object) -> None:
    """Note that an error was raised in a call of a component.

    The first note stays: components call each other, and the innermost one is named.
    """
    if getattr(error, "blamed", None) is None and not isinstance(error, OutOfBlocks):
        kind = type(getattr(component, "inner", component))
        error.blamed = slot, kind.__qualname__  # type: ignore[attr-defined]


@cache
def _libraries() -> frozenset[str]:
    """Return packages in whose lines authors of plugins and users do not look first.

    These are the packages of this distribution, by its entry points, and what it requires.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # takes its time

    core = __name__.partition(".")[0]
    try:
        installed = distribution(core)
    except PackageNotFoundError:
        return frozenset({core})
    required = (re.match(r"[\w.-]+", one) for one in installed.requires or ())
    names = {found[0].lower().replace("-", "_") for found in required if found}
    return frozenset(names.union(one.module.partition(".")[0] for one in installed.entry_points))


def error_text(error: BaseException) -> str:
    """Return the class of an error, what it says, printable, and where: see :func:`error_place`."""
    try:
        said = printable(error.msg if isinstance(error, SyntaxError) else str(error))
    except Exception:  # noqa: BLE001 - code of a plugin or a user
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text + error_place(error)


def error_place(error: BaseException, *, innermost: bool = False) -> str:
    """Return ``" (at FILE:LINE in FUNCTION > ...)"``, to append to a message.

    These are the frames of a plugin's or a user's own code, the innermost last, and then the line
    that is no Python, of a SyntaxError; at most four. Empty if there are none.

    Args:
        innermost: the frame that raised alone, whosever it is.
    """
    frames = list(walk_tb(error.__traceback__))
    shown = frames if innermost else [each for each in frames if _is_own(each[0])]
    places = [f"{f.f_code.co_filename}:{line} in {f.f_code.co_name}" for f, line in shown]
    if isinstance(error, SyntaxError) and error.filename:
        places.append(printable(f"{error.filename}:{error.lineno}"))
    if innermost:
        places = places[-1:]
    elif len(places) > 4:
        places[2:-2] = ["..."]
    return f" (at {' > '.join(places)})" if places else ""


def _is_own(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _libraries() and package not in sys.stdlib_module_names


def stack_text(error: BaseException) -> str:
    """Return the whole traceback of an error, for a log."""
    return "".join(format_exception(error)).rstrip()


_MOST_LISTED, _NEAREST = 50, 8
"""Names up to which a message lists all, and how many of more."""


def no_key(word: str, known: Iterable[str]) -> str:
    """Return what to say behind "no such key": a colon in YAML takes a space, or keys near it."""
    return "; write a space after the colon" if ":" in word else did_you_mean(word, known)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or else all of them, or of many the nearest, to append to a
    message.
    """
    names = sorted(known)
    by_key = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), by_key, n=1)
    if close:
        return f"; did you mean {by_key[close[0]]!r}?"
    if len(names) > _MOST_LISTED:
        near = get_close_matches(word.lower(), by_key, n=_NEAREST, cutoff=0)
        listed = ", ".join(by_key[each] for each in near)
        return f"; the nearest of {len(names)} names are: {listed}"
    return f"; there are: {', '.join(names)}" if names else "; there are none"
