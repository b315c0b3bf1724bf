"""Clients of several engines that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paged_core.client.choice import ClientContext
from paged_core.client.engine_client import ClientState
from paged_core.client.streams import CopiedStream
from paged_core.plugins.registry import Registry
from paged_plugins.engine_process.kept_pins import KeptPins
from paged_plugins.replicas.replica import Replica
from paged_plugins.replicas.routed_client import RoutedClient
from paged_plugins.replicas.settings import RoutedSettings


class _Right(RoutedClient):
    def __init__(self, options: Any, context: ClientContext, /) -> None:
        known = replace(context, registry=Registry.discover())  # to the processes of engines
        super().__init__(RoutedSettings(count=2), known)


class UnpinnedReplicas(_Right):
    """Forgets what is pinned when an engine is lost."""

    def left(self, replica: Replica, streams: Sequence[CopiedStream], /) -> None:
        if replica.state is ClientState.RESTARTING:
            self._pins = KeptPins(self.clock)
        super().left(replica, streams)


class FirstReplicas(_Right):
    """Asks the first engine what all are to report."""

    async def report(self, observer: str, /, since: int = 0) -> Any:
        return await super().report(observer if "@" in observer else f"{observer}@0", since)


class EndingReplicas(_Right):
    """Ends an engine that drains at once; another one serves what that had."""

    async def drain_replica(self, number: int, /) -> None:
        served = [*self._replica(number).served]
        self._book.withhold(number)
        await self._replica(number).close(ClientState.DRAINING, "it has ended")
        self.left(self._replica(number), served)
