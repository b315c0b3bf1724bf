"""The loads of replicas, counted from the requests that are routed to them."""

from __future__ import annotations

from dataclasses import dataclass

from paged_core.request import Request
from paged_plugins.routing.router import Router


@dataclass(slots=True)
class Load:
    """The requests of a replica, as far as they are known outside of it."""

    number: int
    num_requests: int = 0
    """Requests that were routed to it and have not ended."""
    num_tokens: int = 0
    """Tokens of their prompts, and of their answers so far."""
    num_routed: int = 0
    """Requests routed to it so far, and those that the others had at least when it joined."""


class RoutedRequest:
    """A request on the replica that a router chose.

    It counts for the replica that it was routed to: one that has left and is back under the same
    number has a load of its own.
    """

    __slots__ = ("_load", "_num_tokens", "_router", "request")

    def __init__(self, request: Request, load: Load, router: Router) -> None:
        self.request = request
        self._load = load
        self._router = router
        self._num_tokens = len(request.prompt)
        load.num_requests += 1
        load.num_routed += 1
        load.num_tokens += self._num_tokens

    @property
    def replica(self) -> int:
        """The number of the replica."""
        return self._load.number

    def progressed(self, num_tokens: int) -> None:
        """Its answer has so many tokens more."""
        self._num_tokens += num_tokens
        self._load.num_tokens += num_tokens

    def ended(self) -> None:
        """Take the request off the replica, where it ended or was refused; to be called once."""
        self._load.num_requests -= 1
        self._load.num_tokens -= self._num_tokens
        self._router.finished(self.request, self._load.number)


class LoadBook:
    """Asks a router where requests go, and counts the loads that it is shown.

    Replicas come (:meth:`joined`, then :meth:`offer`) and go (:meth:`withhold`, :meth:`left`);
    only those that are offered get requests. Loads change by requests alone.
    """

    def __init__(self, router: Router) -> None:
        self.loads: dict[int, Load] = {}
        """Loads of the replicas that have joined, by number."""
        self.offered: dict[int, Load] = {}
        """Loads of those that take requests, in the order of their numbers."""
        self._router = router
        self._has_routed = False

    def joined(self, replica: int, num_blocks: int) -> None:
        """A replica is there, with an empty cache; it gets requests once it is offered."""
        counts = (load.num_routed for load in self.loads.values())
        fewest = min(counts, default=0) if self._has_routed else 0
        self._router.joined(replica, num_blocks)
        self.loads[replica] = Load(replica, num_routed=fewest)

    def left(self, replica: int) -> None:
        """A replica is gone: it is forgotten, except by its requests that have not ended."""
        self.offered.pop(replica, None)
        del self.loads[replica]
        self._router.left(replica)

    def offer(self, replica: int) -> None:
        """A replica that has joined takes requests from now on."""
        offered = self.offered
        is_last = not offered or replica >= next(reversed(offered))
        offered[replica] = self.loads[replica]
        if not is_last:
            self.offered = dict(sorted(offered.items()))

    def withhold(self, replica: int) -> None:
        """A replica takes no requests until it is offered again."""
        self.offered.pop(replica, None)

    def route(self, request: Request, session: str) -> RoutedRequest:
        """Route a request to one of the replicas that are offered, of which there are some."""
        number = self._router.route(request, session, self.offered)
        self._has_routed = True
        return RoutedRequest(request, self.offered[number], self._router)
