"""Observers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any, ClassVar

from paged_core.interfaces.observer import BlockEvent, Observer, StepRecord
from paged_core.sequence import SequenceGroup


class _Observer(Observer):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.steps = 0


class RaisingObserver(_Observer):
    """Divides by what may be nothing."""

    def on_step(self, step: StepRecord, /) -> None:
        self.steps += 1 // len(step.scheduled)


class MeddlingObserver(_Observer):
    """Ends requests early."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        group.max_length = min(group.max_length, len(group.request.prompt) + 1)


class ClosingObserver(_Observer):
    """Cannot be closed before its first step."""

    def on_step(self, step: StepRecord, /) -> None:
        self.steps += 1

    def close(self) -> None:
        raise OSError("no file") if not self.steps else ValueError("no file either")


class WaitingObserver(_Observer):
    """Waits for something to be scheduled."""

    def on_step(self, step: StepRecord, /) -> None:
        if not step.scheduled:
            Event().wait()


class UniqueObserver(_Observer):
    """Takes it that no id comes twice."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        self.seen: set[str] = set()

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "added":
            if group.id in self.seen:
                raise KeyError(group.id)
            self.seen.add(group.id)


class SimpleObserver(_Observer):
    """Knows no swapping."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.steps += {"added": 1, "admitted": 1, "preempted": -1, "finished": 0}[event]


class TidyObserver(_Observer):
    """Empties what it has read."""

    def on_step(self, step: StepRecord, /) -> None:
        step.scheduled.clear()  # type: ignore[attr-defined]


class PlacedObserver(_Observer):
    """Takes it that every event about blocks names one."""

    def on_block(self, event: BlockEvent, /) -> None:
        self.steps += event.block + 1  # type: ignore[operator]


class OnlyObserver(_Observer):
    """Can be made once."""

    made: ClassVar[list[object]] = []

    def __init__(self, options: Any, parts: Any, /) -> None:
        if self.made:
            raise FileExistsError("observer.lock")
        self.made.append(self)


class PromptObserver(_Observer):
    """Reorders the waiting queue, which it was shown."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "preempted":
            group.num_preemptions += 1
            group.max_length = 0


class BufferingObserver(_Observer):
    """Opens its file when the first request is admitted, and needs it when it is closed."""

    file: Any = None

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted" and self.file is None:
            self.file = Path("buffered.txt").open("w", encoding="utf-8")  # noqa: SIM115

    def close(self) -> None:
        if self.file is None:
            raise ValueError("no file is open")
        self.file.close()
