"""When a request of a replay arrived, drew its first token and ended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """One request that ended. Times are seconds from the start of the replay."""

    id: str
    arrived: float
    first_token: float | None
    """When its first token was there; ``None``: it drew none."""
    finished: float
    num_prompt: int
    num_cached: int
    """Prompt tokens that the prefix cache served when it was first admitted."""
    num_output: int
    """Tokens of its first sequence."""
    finish_reason: str

    @property
    def ttft(self) -> float | None:
        """Seconds from its arrival to its first token."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; ``None``: it has one token at most."""
        if self.first_token is None or self.num_output < 2:
            return None
        return (self.finished - self.first_token) / (self.num_output - 1)

    def values(self) -> dict[str, Any]:
        """Return all of it as plain values; seconds to the nanosecond."""
        values = asdict(self) | {"ttft": self.ttft, "tpot": self.tpot}
        return {
            key: round(value, 9) if isinstance(value, float) else value
            for key, value in values.items()
        }
