"""Whether a component can be tested here: its module is imported, and its check does not refuse."""

from __future__ import annotations

import importlib
from inspect import getattr_static, getfile, getmembers, getsourcefile, isfunction, signature
from pathlib import Path
from traceback import extract_tb

import pytest

from paged_core.errors import PagedCoreError, PluginError
from paged_core.plugins.component import Component, ComponentSettings

RAISED = (Exception, SystemExit, pytest.skip.Exception)
"""What code of a plugin may raise, but for Ctrl-C."""


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
    except RAISED as error:
        if isinstance(error, PluginError) and error.__cause__ is None:
            raise CannotBeTested(f"the check of {what}: {error}") from error
        where = described(error, record.check or "")
        raise CannotBeTested(f"the check of {what} raised: {where}") from error
    if reason is None:
        try:
            made = record.load()
        except RAISED as error:
            where = described(error, record.factory)
            raise CannotBeTested(f"{what} cannot be imported: {where}") from error
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


def described(error: BaseException, path: str = "") -> str:
    """Say what was raised, and where in the package of ``path``, such as ``"package.module:name"``.

    Where nothing of the package is on the stack: the innermost line outside of the import system.
    """
    if isinstance(error, PluginError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, PagedCoreError):
        return str(error)
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    package = path.partition(":")[0].partition(".")[0]
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OF_THE_IMPORT)
    ]
    own = [frame for frame in frames if package in Path(frame.filename).with_suffix("").parts]
    if not (own or frames):
        return f"{message} (it is named by {path!r})"
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}: {message}"


_OF_THE_IMPORT = ("<frozen importlib", getfile(importlib), getfile(Component), __file__)
"""How the names of files begin that import what is named."""
