"""The observers of one engine, told only what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from paged_core.interfaces.observer import BlockEvent, Observer, StepRecord
from paged_core.log import get_logger
from paged_core.sequence import SequenceGroup
from paged_core.step import StepInput

_log = get_logger()


class ObserverSet:
    """Passes events on; who raises is dropped, so that watching never changes what is watched."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)
        self.watch_steps = self._any_overrides("on_step")
        self.watch_requests = self._any_overrides("on_request")
        self.watch_blocks = self._any_overrides("on_block")

    def on_step(self, record: StepRecord) -> None:
        self._tell("on_step", lambda observer: observer.on_step(record))

    def on_request(self, group: SequenceGroup, event: str) -> None:
        if self.watch_requests:
            self._tell("on_request", lambda observer: observer.on_request(group, event))

    def on_blocks(self, step: StepInput) -> None:
        """Tell of every block table entry that a step changes."""
        for event in _block_events(step):
            self._tell("on_block", lambda observer, event=event: observer.on_block(event))

    def close(self) -> None:
        self._tell("close", lambda observer: observer.close())

    def _any_overrides(self, method: str) -> bool:
        default = getattr(Observer, method)
        return any(getattr(type(observer), method) is not default for observer in self._observers)

    def _tell(self, event: str, tell: Callable[..., Any]) -> None:
        for observer in list(self._observers):
            try:
                tell(observer)
            except Exception as error:  # noqa: BLE001 - the plugin boundary
                self._observers.remove(observer)
                _log.warning(
                    "observer_dropped",
                    observer=type(observer).__name__,
                    during=event,
                    reason=f"{type(error).__name__}: {error}",
                )


def _block_events(step: StepInput) -> Iterable[BlockEvent]:
    for seq_id in step.removed:
        yield BlockEvent(sequence=seq_id, index=None, block=None)
    for new in step.added:
        for index, block in enumerate(new.blocks):
            yield BlockEvent(sequence=new.id, index=index, block=block)
    for seq_id, index, block in zip(
        step.edit_ids, step.edit_indices, step.edit_blocks, strict=True
    ):
        yield BlockEvent(sequence=seq_id, index=index, block=block)
