"""Slot ``routes``: some of the paths that the server ``http`` answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


class Routes(ABC):
    """Answers some paths with what a service has.

    The factory is called with the options and the :class:`~paged_plugins.server.service.Service`.
    What a route gets has passed the checks that hold for all: keys, hosts, origins, sizes. When a
    client goes after its request was read, the task that answers it is cancelled.
    """

    @abstractmethod
    def routes(self) -> Sequence[BaseRoute]:
        """Return Starlette's routes.

        An :class:`~paged_plugins.server.http.endpoint.Endpoint` among them is in the server's
        OpenAPI document, and its body is checked before it is called.
        """
