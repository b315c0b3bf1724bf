"""The look-ups of a run in the prefix cache, known from a rehearsal of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from paged_core.ids import BlockKey, extend_keys
from paged_core.interfaces.observer import Observer
from paged_core.plugins.registry import Registry
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.sequence import SequenceGroup
from paged_core.settings.schema import EngineSettings


class RehearsedOracle(LookupOracle):
    """The look-ups of a run, in the order of a rehearsal with the evictor ``lru``.

    The rehearsal is made when an evictor first asks for the future: those that never do cost
    nothing.

    Where a request follows another's answer, or time decides who is admitted first, the order of
    look-ups depends on what is evicted, and so on who asks: the future is then an approximation.
    It is exact where the run admits requests in the order of the rehearsal.

    Args:
        settings: of the run.
        rehearse: runs the same requests under other settings, with an observer.
    """

    def __init__(
        self,
        settings: EngineSettings,
        registry: Registry,
        rehearse: Callable[[EngineSettings, Observer], object],
    ) -> None:
        self._places: dict[str, int] = {}
        super().__init__(self._rehearsed(settings, registry, rehearse))

    def admitted(self, request_id: str) -> None:
        """A request was admitted: it has made its look-up."""
        self.reach(self._places.get(request_id, self.position) + 1)

    def _rehearsed(
        self,
        settings: EngineSettings,
        registry: Registry,
        rehearse: Callable[[EngineSettings, Observer], object],
    ) -> Iterator[Sequence[int]]:
        look_ups = LookUps(settings.block_size)
        lru = registry.get("evictor", "lru").settings.model_validate({})
        rehearse(settings.model_copy(update={"evictor": lru, "observers": ()}), look_ups)
        for place, (request_id, content_keys) in enumerate(look_ups.found.items()):
            self._places[request_id] = place
            yield content_keys


class Admissions(Observer):
    """Tells a future which requests were admitted."""

    def __init__(self, future: RehearsedOracle) -> None:
        self._future = future

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted":
            self._future.admitted(group.id)


class LookUps(Observer):
    """Notes what requests look up when they are first admitted: the blocks before their last token.

    Args:
        block_size: tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self.found: dict[str, list[int]] = {}
        """Content keys by request id, in the order of admission."""
        self._block_size = block_size

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted" and group.id not in self.found:
            keys: list[BlockKey] = []
            request = group.request
            count = (len(request.prompt) - 1) // self._block_size
            extend_keys(keys, request.prompt, self._block_size, request.cache_salt, count)
            self.found[group.id] = [hash(key) for key in keys]
