"""One of several engines: its client, and the requests that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from paged_core.client.engine_client import ClientState
from paged_core.client.streams import CopiedStream
from paged_plugins.engine_process.client import ProcessClient
from paged_plugins.replicas.replicas import ReplicaHealth
from paged_plugins.routing.load_book import RoutedRequest

Lost = Callable[["Replica", Sequence[CopiedStream]], None]


class Replica:
    """The owner of the client of one engine.

    Args:
        on_end: called with each request that its client holds no more.
        on_lost: called when the engine has ended by itself, with what others may serve.
    """

    def __init__(
        self, number: int, on_end: Callable[[CopiedStream], None], on_lost: Lost
    ) -> None:
        self.number = number
        self.client: ProcessClient | None = None
        """Of its engine; ``None``: there is none at the moment."""
        self.state, self.reason = ClientState.STARTING, str | None
        self.served: dict[CopiedStream, tuple[RoutedRequest, int]] = {}
        """What it serves, and how many tokens of each answer are counted."""
        self.changed = asyncio.Event()
        """Set whenever its state has changed; who waits for that clears it."""
        self.keeper: asyncio.Task[None] | None = None
        """Starts its engine, again and again."""
        self._on_end, self._on_lost = on_end, on_lost

    def be(self, state: ClientState, reason: str | None = None) -> None:
        """Change its state."""
        self.state, self.reason = state, reason
        self.changed.set()

    @property
    def is_ready(self) -> bool:
        """Whether its engine takes requests now."""
        if self.state is not ClientState.READY or self.client is None:
            return False
        return self.client.health().state is ClientState.READY

    def serve(self, stream: CopiedStream, routed: RoutedRequest) -> None:
        """Have its engine serve a request that was routed to it.

        Raises:
            RequestError: it cannot be sent.
        """
        assert self.client is not None
        self.served[stream] = routed, 0
        try:
            self.client.adopt(stream)
        except BaseException:
            self.ended(stream)
            raise

    def count_tokens(self) -> None:
        """Count the tokens that answers have gained for its load."""
        for stream, (routed, counted) in self.served.items():
            group = stream.group
            now = sum(len(each.tokens) for each in group.sequences)
            now -= len(group.sequences) * len(group.request.prompt)
            if now != counted:
                routed.progressed(now - counted)
                self.served[stream] = routed, now

    def health(self) -> ReplicaHealth:
        """Return how it is."""
        state, reason = self.state, self.reason
        if state is ClientState.READY and self.client is not None:
            found = self.client.health()  # it may have ended without anything noticed so far
            state, reason = found.state, found.reason
        return ReplicaHealth(
            number=self.number, state=state, reason=reason, num_unfinished=len(self.served)
        )

    # ------------------------------------------------------------------ of its client

    def ended(self, stream: CopiedStream, /) -> None:
        routed, _ = self.served.pop(stream)
        self._on_end(stream)
        routed.ended()

    def lost(self, streams: Sequence[CopiedStream], reason: str, /) -> None:
        if self.state is not ClientState.DRAINING:
            self.be(ClientState.RESTARTING, reason)
        self._on_lost(self, streams)
