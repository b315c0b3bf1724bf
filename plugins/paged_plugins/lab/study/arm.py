"""An engine under study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BASE = "base"
"""Label of the arm that the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One engine under study."""

    label: str
    """``base``, or what it changes: ``victim=fewest_computed``, ``evictor=slru num_blocks=128``."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key that differ from those of the base."""
    held: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key that it shares with the base, where other arms differ in them."""
    axis: str | None = None
    """The setting that it varies; ``None``: the base, or several are varied at once."""
    compared_with: str = BASE
    """Label of the arm that it is compared with."""
