"""An LLM inference engine made of swappable parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paged_core._version import __version__

if TYPE_CHECKING:
    from paged_core.errors import PagedCoreError
    from paged_core.llm import LLM
    from paged_core.outputs import CompletionOutput, RequestOutput
    from paged_core.request import Request, SamplingParams
    from paged_core.settings import EngineSettings

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineSettings",
    "PagedCoreError",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "LLM": "paged_core.llm",
    "CompletionOutput": "paged_core.outputs",
    "EngineSettings": "paged_core.settings",
    "PagedCoreError": "paged_core.errors",
    "Request": "paged_core.request",
    "RequestOutput": "paged_core.outputs",
    "SamplingParams": "paged_core.request",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import paged_core`` stays light."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
