"""What a step would have for one more group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Room:
    """Seats, tokens and blocks that those who run leave; below 0 where they take too much."""

    seats: int
    tokens: int
    blocks: int
    num_running: int
    """Groups that run, and go on."""

    def widen(self, *, seats: int, tokens: int, blocks: int) -> None:
        """One of those that run leaves."""
        self.seats += seats
        self.tokens += tokens
        self.blocks += blocks
        self.num_running -= 1
