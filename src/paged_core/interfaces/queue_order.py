"""Slot ``queue_order``: who comes first, among those that wait and, reversed, among victims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from paged_core.kv_cache import KVCache
from paged_core.sequence import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderParts:
    """What the factory of an order gets beside its options."""

    kv_cache: KVCache


class QueueOrder(ABC):
    """Orders groups by a key; equal keys keep the order of the queue."""

    stable: bool = True
    """Whether a group's key stays the same while it waits: then the queue is a heap."""

    @abstractmethod
    def key(self, group: SequenceGroup, now: float, /) -> Any:
        """Return a comparable key; the smallest goes first. ``now`` is in seconds.

        It follows from the group, the time and what was served; asking changes nothing.
        """


@runtime_checkable
class SupportsService(Protocol):
    """An order that counts what each group was given."""

    def served(self, group: SequenceGroup, num_tokens: int, /) -> None:
        """``num_tokens`` of the group were scheduled."""

    def left(self, group: SequenceGroup, /) -> None:
        """The group has ended."""
