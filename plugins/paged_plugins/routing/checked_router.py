"""A router whose answers are checked, and whose errors name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from paged_core.errors import EngineError, error_text
from paged_core.request import Request
from paged_plugins.routing.router import BlockChange, ReplicaLoad, Router, SupportsBlockEvents


class CheckedRouter(Router):
    """Asks a router.

    Args:
        name: of its component.

    Raises:
        EngineError: from its methods: the router raised, or its answer is no replica.
    """

    def __init__(self, inner: Router, name: str) -> None:
        self._inner = inner
        self._what = f"router {name!r}"
        self._events = inner if isinstance(inner, SupportsBlockEvents) else None

    @property
    def wants_block_events(self) -> bool:
        """True if :meth:`blocks_changed` is to be called, see :class:`SupportsBlockEvents`."""
        return self._events is not None

    def joined(self, replica: int, num_blocks: int, /) -> None:
        with self._named():
            self._inner.joined(replica, num_blocks)

    def left(self, replica: int, /) -> None:
        with self._named():
            self._inner.left(replica)

    def route(self, request: Request, session: str, replicas: Mapping[int, ReplicaLoad], /) -> int:
        with self._named():
            number = self._inner.route(request, session, replicas)
        if type(number) is not int or number not in replicas:
            raise EngineError(
                f"{self._what} answered {number!r:.80} for request {request.id!r}; route() has to "
                f"return one of the numbers of the replicas it is given, {_few(replicas)} "
                "(paged_plugins.routing.testing.RouterConformance tests it)"
            )
        return number

    def finished(self, request: Request, replica: int, /) -> None:
        with self._named():
            self._inner.finished(request, replica)

    def blocks_changed(self, replica: int, changes: Iterable[BlockChange], /) -> None:
        """Tell the router, if it wants to know."""
        if self._events is not None:
            with self._named():
                self._events.blocks_changed(replica, changes)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise EngineError(f"{self._what} raised {error_text(error)}") from error


def _few(replicas: Mapping[int, ReplicaLoad]) -> str:
    """Return the numbers of replicas; of many, only the first and the last."""
    numbers = list(replicas)
    if len(numbers) > 8:
        return f"{numbers[0]}, ..., {numbers[-1]}"
    return ", ".join(map(str, numbers))
