"""Numbers of heads for a benchmark of attention, written as ``16:8:128``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from paged_core.errors import SettingsError

_PATTERN = re.compile(r"(\d+):(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Query heads, key/value heads, and the dimension of each."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``HEADS:KV_HEADS:DIM``.

        Raises:
            SettingsError: the text has another form, a number is 0, or the query heads cannot be
                shared evenly.
        """
        found = _PATTERN.fullmatch(text)
        if found is None or not all(map(int, found.groups())):
            raise SettingsError(
                f"--heads {text}: give query heads, key/value heads and their dimension, such as "
                "16:8:128"
            )
        heads = cls(*map(int, found.groups()))
        if heads.num_heads % heads.num_kv_heads:
            raise SettingsError(
                f"--heads {text}: {heads.num_heads} is not a multiple of {heads.num_kv_heads}"
            )
        return heads

    def __str__(self) -> str:
        return f"{self.num_heads}:{self.num_kv_heads}:{self.head_dim}"
