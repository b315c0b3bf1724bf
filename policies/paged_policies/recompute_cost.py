"""Cost to compute a token again, which evictors and victims weigh."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

EVEN_AT = 24576
EvenAt = Annotated[
    PositiveInt,
    Field(
        description="tokens before a token for which attention costs as much as all else: about "
        "six times the hidden size"
    ),
]
"""Option of policies that weigh the cost; :data:`EVEN_AT` by default."""


def cost_of_token(place: float, even_at: int) -> float:
    """Return the operations for a token behind so many others; those for a first one are 1."""
    return 1 + place / even_at
