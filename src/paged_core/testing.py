"""The former name of the conformance kit, :mod:`paged_testing`: every name is that package's."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_testing import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Import the kit, and with it pytest and hypothesis, when a name of it is asked for."""
    return getattr(import_module("paged_testing"), name)
