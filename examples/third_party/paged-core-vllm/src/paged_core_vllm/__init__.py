"""Policies of paged-core inside vLLM: ``--scheduler-cls paged_core_vllm.PolicyScheduler``.

vLLM is imported when a scheduler is first asked for, so that everything else works without it.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["AsyncPolicyScheduler", "PolicyScheduler", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in {"PolicyScheduler", "AsyncPolicyScheduler"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paged_core_vllm import scheduler

    return getattr(scheduler, name)
