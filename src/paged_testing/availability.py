"""Checks that a component can be tested here: it is imported, and does not refuse."""

from __future__ import annotations

from inspect import getattr_static, getmembers, getsourcefile, isfunction, signature

import pytest

from paged_core.errors import PagedCoreError, PluginError, error_text
from paged_core.plugins.component import Component, ComponentSettings

RAISED = (Exception, SystemExit, pytest.skip.Exception)
"""Exceptions that code of a plugin may raise, but for Ctrl-C."""


class CannotBeTested(Exception):
    """The component, or what finds it, is broken; the message names the file, the line and why."""


def refusal(record: Component, options: ComponentSettings, interface: type) -> str | None:
    """Return the reason for which the component's check refuses; ``None``: it is imported.

    Raises:
        CannotBeTested: the check raises or answers something else, the import fails, or a method
            is missing, or cannot be called as ``interface`` says.
    """
    what = f"{record.slot} {record.name!r}"
    try:
        reason = record.ask_check(options)
    except PluginError as error:
        raise CannotBeTested(f"the check of {what}: {error}") from error
    except RAISED as error:
        raise CannotBeTested(f"the check of {what} raised: {said(error)}") from error
    if reason is None:
        try:
            made = record.load()
        except PluginError as error:
            raise CannotBeTested(str(error)) from error
        except RAISED as error:
            raise CannotBeTested(f"{what} cannot be imported: {said(error)}") from error
        if problem := misfit(made, interface):
            raise CannotBeTested(f"{what} cannot be used: {problem}")
    return reason


def misfit(made: object, interface: type) -> str | None:
    """Return why a class cannot be what its slot's interface says; ``None``: it may be."""
    if not isinstance(made, type):
        return None  # a function that makes it
    if missing := sorted(getattr(made, "__abstractmethods__", ())):
        return f"{getsourcefile(made)}: {made.__name__} lacks {', '.join(missing)}()"
    for name, wanted in getmembers(interface, isfunction):
        own = getattr_static(made, name, None)
        if name.startswith("_") or own is wanted or not isfunction(own):
            continue
        try:
            parameters = signature(wanted).parameters.values()
            by_name = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
            signature(own).bind(*[None] * (len(parameters) - len(by_name)), **by_name)
        except TypeError as error:
            code = own.__code__
            return (
                f"{code.co_filename}:{code.co_firstlineno}: {made.__name__}.{name}() cannot be "
                f"called with {signature(wanted)}: {error}"
            )
    return None


def said(error: BaseException) -> str:
    """Return what an error says; of one that is not ours its class and place, too."""
    return str(error) if isinstance(error, PagedCoreError) else error_text(error)
