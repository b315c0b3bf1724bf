"""Slots ``server`` and ``routes``: how requests come in from outside, and what is answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


class Server(ABC):
    """Listens for requests, and answers them with what a service has.

    The factory is called with the options and the :class:`~paged_plugins.server.service.Service`.
    All is done in one event loop.
    """

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens, such as ``http://127.0.0.1:8000``; it is there once it has started."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to listen, whether or not the service's client is ready.

        Raises:
            SettingsError: it cannot listen there, or an option names what is not there.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop listening, and end what is unanswered; calling it again does nothing."""


class Routes(ABC):
    """Some of the paths that a server answers.

    The factory is called with the options and the :class:`~paged_plugins.server.service.Service`.
    What a route gets has passed the checks that hold for all: keys, hosts, origins, sizes.
    """

    @abstractmethod
    def routes(self) -> Sequence[BaseRoute]:
        """Return Starlette's routes; an :class:`~paged_plugins.server.http.endpoint.Endpoint` among
        them is also in the server's OpenAPI document."""
