"""What a router sees of one replica."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """The requests of a replica, as far as they are known outside of it."""

    num_requests: int = 0
    """That were routed to it and have not ended."""
    num_tokens: int = 0
    """Of their prompts, and of their answers so far."""
