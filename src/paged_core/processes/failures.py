"""Errors over a wire: what becomes of one that is raised in another process."""

from __future__ import annotations

import json
from collections.abc import Callable

from paged_core import errors
from paged_core.errors import EngineError, PagedCoreError, error_place, error_text, stack_text


def named_error(error: BaseException) -> tuple[str, str]:
    """Return the name of an error of ours, or of one that stands for another, and its message."""
    if isinstance(error, PagedCoreError):
        ours = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        return ours.__name__, str(error)
    return EngineError.__name__, error_text(error)


def raised(named: tuple[str, str]) -> PagedCoreError:
    """Return the error that :func:`named_error` named."""
    name, message = named
    kind: type[PagedCoreError] = getattr(errors, name)
    return kind(message)


def told(error: BaseException, describe: Callable[[BaseException], str] | None = None) -> bytes:
    """Return an error as the content of a message, with its place and its traceback.

    Args:
        describe: says who raised an error that is none of ours, which is a plugin's then.
    """
    if isinstance(error, PagedCoreError):
        name, message = named_error(error)
        message += error_place(error)
    elif describe is not None:
        name, message = errors.PluginError.__name__, describe(error)
    else:
        name, message = named_error(error)
    return json.dumps((name, message, stack_text(error))).encode()


def error_of(content: bytes) -> PagedCoreError:
    """Return the error of such a message; the traceback there is a note of it."""
    name, message, stack = json.loads(content)
    error = raised((name, message))
    error.add_note(f"In another process:\n{stack}")
    return error
