"""Slot ``server``: how requests come in from outside."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Server(ABC):
    """Listens for requests, and answers them with what a service has.

    The factory is called with the options and the :class:`~paged_plugins.server.service.Service`.
    It is used in one event loop.
    """

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens, such as ``http://127.0.0.1:8000``; it is there once it has started."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to listen, whether or not the service's client takes requests yet.

        Raises:
            SettingsError: it cannot listen there, or an option names what is not there.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop listening, and end the connections; calling it again does nothing."""
