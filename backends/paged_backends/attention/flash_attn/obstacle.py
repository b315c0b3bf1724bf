"""Whether there is a GPU and a provider of flash attention here."""

from __future__ import annotations

from paged_backends.attention.flash_attn.providers import providers
from paged_backends.kernels.nvidia import gpu_problem


def obstacle() -> str | None:
    """Return why no provider can be used, or ``None``; without a GPU none is imported."""
    reason = gpu_problem()
    if reason is not None:
        return reason
    reasons = [(one.title, one.obstacle()) for one in providers("auto", deterministic=False)]
    if any(reason is None for _, reason in reasons):
        return None
    return "; ".join(f"{title}: {reason}" for title, reason in reasons)


def details() -> str:
    """Return the providers that can be used, and how to get the others."""
    found = [(one.title, one.obstacle()) for one in providers("auto", deterministic=False)]
    usable = ", ".join(title for title, reason in found if reason is None)
    others = "; ".join(f"{title}: {reason}" for title, reason in found if reason is not None)
    return f"provider {usable}" + (f"; {others}" if others else "")
