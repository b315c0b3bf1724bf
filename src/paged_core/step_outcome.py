"""What one call of :meth:`~paged_core.engine.Engine.step` did for the requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from paged_core.sequence import SequenceGroup, SequenceState


@dataclass(slots=True)
class StepOutcome:
    """Which requests finished and which sequences gained a token: what a front end streams."""

    finished: list[SequenceGroup] = field(default_factory=list)
    """Requests that ended, for whatever reason."""
    advanced: list[SequenceState] = field(default_factory=list)
    """Sequences that gained a token, in batch order. Beams are left out: a search replaces their
    tokens until it has finished."""
    tokens: list[int] = field(default_factory=list)
    """Beside it: the token, which ``sequence.tokens`` ends with."""
    progressed: bool = False
    """Whether the scheduler planned anything or a result was applied; if not, all requests wait."""

    def add(self, sequences: list[SequenceState | None], tokens: list[int]) -> None:
        """Name sequences that gained a token, beside it; ``None``: that token was dropped."""
        if not all(sequences):
            kept = [(each, token) for each, token in zip(sequences, tokens, strict=True) if each]
            sequences, tokens = [each for each, _ in kept], [token for _, token in kept]
        self.advanced += cast("list[SequenceState]", sequences)
        self.tokens += tokens
