"""Checks that a component can be tested here: it is imported, and does not refuse."""

from __future__ import annotations

from asyncio import CancelledError

import pytest

from paged_core.errors import PagedCoreError, PluginError, error_text
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry

RAISED = (Exception, SystemExit, CancelledError, pytest.skip.Exception, pytest.fail.Exception)
"""Exceptions that code of a plugin, or a test of it, may raise, but for Ctrl-C."""


class CannotBeTested(Exception):
    """The component, or what finds it, is broken; the message names the file, the line and why."""


def refusal(registry: Registry, record: Component, options: ComponentSettings) -> str | None:
    """Return the reason for which the component's check refuses; ``None``: it is imported.

    Raises:
        CannotBeTested: the check raises or answers something else, the import fails, or a method
            is missing, or cannot be called as the interface says.
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
            if isinstance(made := record.load(), type):
                registry.refuse_misfit(record.slot, record.name, made)
        except PluginError as error:
            raise CannotBeTested(str(error)) from error
        except RAISED as error:
            raise CannotBeTested(f"{what} cannot be imported: {said(error)}") from error
    return reason


def shortened(text: str, most: int = 700) -> str:
    """Leave out the middle of a long text, such as an error that names an id of 5000 letters, and
    the line that raised it at its end."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [...] {text[-half:]}"


def said(error: BaseException) -> str:
    """Return what an error says; of one that is not ours its class and place, too."""
    return str(error) if isinstance(error, PagedCoreError) else error_text(error)
