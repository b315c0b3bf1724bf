"""Former names of marks."""

from pathlib import Path

from marks import long as inherited
from marks import long as slow

__all__ = ["ROOT", "inherited", "slow"]

ROOT = Path(__file__).parents[1]
