"""Options of the grammars, and whether their packages are here; imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from paged_core.plugins.component import ComponentSettings


class LlguidanceSettings(ComponentSettings):
    """The package llguidance: forms are matched as they are needed, masks in parallel."""

    name: Literal["llguidance"] = "llguidance"
    num_threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="that fill masks; null: one for every two cores, at most eight",
    )


class XgrammarSettings(ComponentSettings):
    """The package xgrammar: forms are compiled ahead of their use."""

    name: Literal["xgrammar"] = "xgrammar"
    num_threads: int = Field(default=1, ge=1, le=1024, description="that compile a grammar")


def no_llguidance() -> str | None:
    """Return why llguidance cannot be used."""
    return _missing("llguidance", "pip install 'paged-core[serve]'")


def no_xgrammar() -> str | None:
    """Return why xgrammar cannot be used."""
    return _missing("xgrammar", "pip install xgrammar")


def _missing(package: str, remedy: str) -> str | None:
    if find_spec(package) is not None:
        return None
    return f"the package {package} is not installed: {remedy}"
