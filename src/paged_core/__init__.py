"""An LLM inference engine made of swappable parts."""

from __future__ import annotations

from paged_core._version import __version__

TYPE_CHECKING = False  # typing takes longer to import than the rest
if TYPE_CHECKING:
    from typing import Any

    from paged_core.async_llm import AsyncLLM
    from paged_core.errors import PagedCoreError
    from paged_core.llm import LLM
    from paged_core.request import Request
    from paged_core.sampling_params import BeamSearchParams, SamplingParams
    from paged_core.settings.schema import EngineSettings
    from paged_core.structured_outputs import StructuredOutputs
    from paged_core.text.outputs import CompletionOutput, Logprob, RequestOutput

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineSettings",
    "Logprob",
    "PagedCoreError",
    "Request",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]

_HOMES = {
    "LLM": "paged_core.llm",
    "AsyncLLM": "paged_core.async_llm",
    "BeamSearchParams": "paged_core.sampling_params",
    "CompletionOutput": "paged_core.text.outputs",
    "EngineSettings": "paged_core.settings.schema",
    "Logprob": "paged_core.text.outputs",
    "PagedCoreError": "paged_core.errors",
    "Request": "paged_core.request",
    "RequestOutput": "paged_core.text.outputs",
    "SamplingParams": "paged_core.sampling_params",
    "StructuredOutputs": "paged_core.structured_outputs",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that ``import paged_core`` stays light."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
