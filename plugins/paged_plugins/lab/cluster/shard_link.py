"""How a cluster calls its shards."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from paged_plugins.lab.cluster.shard import Shard


class ShardLink(Protocol):
    """Calls the methods of a :class:`~paged_plugins.lab.cluster.shard.Shard`, wherever it is."""

    def send(self, method: str, /, *arguments: Any) -> None:
        """Call a method; calls are answered in their order."""

    def receive(self) -> Any:
        """Return the answer to the first call that has none yet, or raise what it raised."""


class LocalLink:
    """Calls a shard in this process, which answers at once."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._answers: deque[Any] = deque()

    def send(self, method: str, /, *arguments: Any) -> None:
        self._answers.append(getattr(self._shard, method)(*arguments))

    def receive(self) -> Any:
        return self._answers.popleft()
