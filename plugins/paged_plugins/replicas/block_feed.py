"""Contents of the prefix cache of one engine, told to a router that wants to know them."""

from __future__ import annotations

import asyncio
from time import monotonic

from paged_core.errors import EngineError, RequestError
from paged_core.log import get_logger
from paged_plugins.engine_process.client import ProcessClient
from paged_plugins.replicas.engine_settings import BLOCK_EVENTS
from paged_plugins.routing.checked_router import CheckedRouter

_PERIOD = 0.1
"""Seconds between two questions, at least."""
_SHARE = 0.05
"""Share of the time that answers may take: if they take long, they are asked for less often."""

_log = get_logger()


class BlockFeed:
    """Asks an engine again and again, beside the requests, until it is closed.

    Args:
        replica: the number of the engine.
    """

    def __init__(self, client: ProcessClient, replica: int, router: CheckedRouter) -> None:
        self._client, self._replica, self._router = client, replica, router
        self.num_reports = 0
        """Reports so far, also those that nothing has changed."""
        self._task = asyncio.create_task(self._feed())

    def close(self) -> None:
        """Ask no more: the engine has left."""
        self._task.cancel()

    async def _feed(self) -> None:
        since = 0
        try:
            while True:
                began = monotonic()
                report = await self._client.report(BLOCK_EVENTS, since)
                since = report["next"]
                if report["events"]:
                    self._router.blocks_changed(self._replica, report["events"])
                self.num_reports += 1
                await asyncio.sleep(max(_PERIOD, (monotonic() - began) / _SHARE))
        except (EngineError, RequestError) as error:
            if self._client.is_ready:  # else it was lost, and leaves
                _log.error("block_events_ended", replica=self._replica, reason=str(error))
