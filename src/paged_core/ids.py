"""The numbers by which sequences and blocks are known on both sides of the executor."""

from __future__ import annotations

from typing import NewType

SeqId = NewType("SeqId", int)
BlockId = NewType("BlockId", int)
