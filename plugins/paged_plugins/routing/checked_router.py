"""A router whose answers are checked, and whose errors name it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paged_core.errors import EngineError, error_text
from paged_core.request import Request
from paged_plugins.routing.router import ReplicaLoad, Router


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

    def route(self, request: Request, session: str, replicas: Sequence[ReplicaLoad], /) -> int:
        with self._named():
            number = self._inner.route(request, session, replicas)
        if type(number) is not int or not 0 <= number < len(replicas):
            raise EngineError(
                f"{self._what} answered {number!r:.80} for request {request.id!r}; route() has to "
                f"return an int, from 0 to {len(replicas) - 1}, the number of a replica "
                "(paged_plugins.routing.testing.RouterConformance tests it)"
            )
        return number

    def finished(self, request: Request, replica: int, /) -> None:
        with self._named():
            self._inner.finished(request, replica)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise EngineError(f"{self._what} raised {error_text(error)}") from error
