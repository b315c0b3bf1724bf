"""Observers that are wrong on purpose: their conformance class must catch each."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any, ClassVar

from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.request import FinishReason
from paged_core.sequence import SequenceGroup
from unit.faulty_settings import FaultyPathSettings, with_another


class _Observer(Observer):
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.steps = 0
        self.seen: set[str] = set()
        self.file: Any = None


OF_STEPS = {
    # divides by what may be nothing
    "RaisingObserver": lambda self, step: 1 // len(step.scheduled),
    # waits for something to be scheduled
    "WaitingObserver": lambda self, step: step.scheduled or Event().wait(),
    # waits between two steps
    "SleepingObserver": lambda self, step: sleep(0),
    # counts tokens by copies of all answers
    "CopyingObserver": lambda self, step: [
        len(each.output) for group in step.queues.running for each in group.sequences
    ],
    # empties what others are told, too
    "EmptyingObserver": lambda self, step: step.swapped_out.clear(),
    # empties what it has read
    "TidyObserver": lambda self, step: step.scheduled.clear(),
}
OF_REQUESTS = {
    # knows no swapping
    "SimpleObserver": lambda self, group, event: (
        "added",
        "admitted",
        "preempted",
        "finished",
    ).index(event),
}
OF_CACHED = {
    # takes it that blocks are found for ever
    "CachingObserver": lambda self, event: event.key.digest,
    # takes it that a block loses its content alone
    "SingleObserver": lambda self, event: None if event.key else hex(event.block),
}
globals().update(
    {
        **with_another(__name__, _Observer, "on_step", OF_STEPS),
        **with_another(__name__, _Observer, "on_request", OF_REQUESTS),
        **with_another(__name__, _Observer, "on_cache", OF_CACHED),
    }
)


class MeddlingObserver(_Observer):
    """Ends requests early."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        group.max_length = min(group.max_length, len(group.request.prompt) + 1)


class MarkingObserver(_Observer):
    """Notes in requests how long they have waited."""

    def on_step(self, step: StepRecord, /) -> None:
        for group in step.queues.waiting:
            group.waiting_since = group.arrival


class UniqueObserver(_Observer):
    """Takes it that no id comes twice."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "added":
            if group.id in self.seen:
                raise KeyError(group.id)
            self.seen.add(group.id)


class RefusedObserver(_Observer):
    """Takes it that what is refused was added."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "added":
            self.seen.add(group.id)
        elif event in ("finished", "refused"):
            self.seen.remove(group.id)


class AwayObserver(_Observer):
    """Takes it that what is swapped out comes back."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "swapped_out":
            self.seen.add(group.id)
        elif event == "swapped_in":
            self.seen.remove(group.id)
        elif event == "finished" and group.id in self.seen:
            raise KeyError(group.id)


class OnlyObserver(_Observer):
    """Can be made once."""

    made: ClassVar[list[object]] = []

    def __init__(self, options: Any, parts: Any, /) -> None:
        if self.made:
            raise FileExistsError("observer.lock")
        self.made.append(self)


class BufferingObserver(_Observer):
    """Opens its file when the first request is admitted, and needs it when it is closed."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted" and self.file is None:
            self.file = Path("buffered.txt").open("w", encoding="utf-8")  # noqa: SIM115

    def close(self) -> None:
        if self.file is None:
            raise ValueError("no file is open")
        self.file.close()


class OnceClosedObserver(_Observer):
    """Takes it that it is closed once."""

    def close(self) -> None:
        if self.file:
            raise ValueError("it is closed")
        self.file = True


class LookingObserver(_Observer):
    """Takes what was computed to be there, though it was aborted meanwhile."""

    def on_step(self, step: StepRecord, /) -> None:
        assert not self.seen & step.scheduled.keys()

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished" and group.sequences[0].finish_reason is FinishReason.ABORT:
            self.seen.add(group.id)
        elif event == "added":
            self.seen.discard(group.id)


class UnclosedObserver(_Observer):
    """Leaves its file open."""

    def on_step(self, step: StepRecord, /) -> None:
        if self.file is None:
            self.file = Path("unclosed.txt").open("w", encoding="utf-8")  # noqa: SIM115


class WordyObserver(_Observer):
    """Keeps a line for each step."""

    text = ""

    def on_step(self, step: StepRecord, /) -> None:
        self.text += f"{step.number}\n"


class AllButAddedObserver(_Observer):
    """Takes what was refused to be there."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.seen.discard(group.id)
        else:
            self.seen.add(group.id)


class EndedObserver(_Observer):
    """Keeps what was aborted while it ran."""

    missed = FinishReason.ABORT

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "admitted":
            self.seen.add(group.id)
        elif event == "finished" and group.sequences[0].finish_reason is not self.missed:
            self.seen.discard(group.id)


class ErrorsObserver(EndedObserver):
    """Keeps what ended by an error."""

    missed = FinishReason.ERROR


class SwappedObserver(_Observer):
    """Keeps the ids of those that were swapped out."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "swapped_out":
            self.seen.add(group.id)


class IdleObserver(_Observer):
    """Keeps requests until no request is left."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.there = 0

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.there += {"added": 1, "finished": -1}.get(event, 0)
        self.seen.add(str(group.request))
        if not self.there:
            self.seen.clear()


class CommonObserver(_Observer):
    """Knows, with its class, which requests there are, as if there was one engine."""

    there: ClassVar[set[str]] = set()

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "added":
            self.there.add(group.id)
        elif event == "finished":
            self.there.remove(group.id)


class TruncatingObserver(_Observer):
    """Cuts the output of what has finished."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        for sequence in group.sequences if event == "finished" else ():
            del sequence.tokens[-1]


class _Reporting(_Observer):
    """Reports its steps; writes what it keeps elsewhere."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.last = [0]
        self.running: Sequence[SequenceGroup] = ()

    def on_step(self, step: StepRecord, /) -> None:
        self.steps += 1
        self.last[0] = step.number
        self.running = step.queues.running

    def report(self, since: int, /) -> Any:
        return list(self.last)


class RefusedNamesObserver(_Reporting):
    """Reports the name of what was refused, of any length."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.seen = {group.id} if event == "refused" else self.seen

    def report(self, since: int, /) -> Any:
        return [*self.seen]


class ReadObserver(_Reporting):
    """Forgets steps that were asked for."""

    def on_step(self, step: StepRecord, /) -> None:
        self.last.append(step.number)
        del self.last[:-8]

    def report(self, since: int, /) -> Any:
        self.last = [number for number in self.last if not 0 < since <= number]
        return {"cursor": self.last[-1] if self.last else 0, "steps": list(self.last)}


class RingObserver(_Reporting):
    """Takes a number for a place among the last steps."""

    def on_step(self, step: StepRecord, /) -> None:
        self.steps += 1
        self.last.append(step.number)
        del self.last[:-12]

    def report(self, since: int, /) -> Any:
        begin = since if since <= self.steps else 0
        return {"cursor": self.steps, "steps": self.last[begin:]}


class RepeatingObserver(RingObserver):
    """Takes the number of the oldest end that it keeps for one that it did not give."""

    def on_step(self, step: StepRecord, /) -> None:
        """Steps are not reported."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        if event == "finished":
            self.steps += 1
            self.last = [each for each in (*self.last[-300:], self.steps) if each]

    def report(self, since: int, /) -> Any:
        is_known = bool(self.last) and self.last[0] < since <= self.steps
        ends = [each for each in self.last if each > since or not is_known]
        return {"cursor": self.steps, "ends": ends}


class PagedObserver(RingObserver):
    """Reports the first of the steps that came, and the number of the last."""

    def report(self, since: int, /) -> Any:
        more = self.steps - since if 0 < since <= self.steps else len(self.last)
        return {"cursor": self.steps, "steps": self.last[len(self.last) - more :][:4]}


class PairingObserver(_Observer):
    """Looks for each that waits among all."""

    def on_step(self, step: StepRecord, /) -> None:
        waiting = step.queues.waiting
        self.steps += sum(group in waiting for group in waiting)


class SearchingObserver(_Observer):
    """Looks for each that is scheduled among those that run."""

    def on_step(self, step: StepRecord, /) -> None:
        running = step.queues.running
        for name in step.scheduled:
            self.steps += next((at for at, group in enumerate(running) if group.id == name), 0)


class OneFileObserver(_Observer):
    """Has a file with its class, which the first that is closed closes."""

    files: ClassVar[list[Any]] = []

    def __init__(self, options: Any, parts: Any, /) -> None:
        if not self.files or self.files[0].closed:
            self.files[:] = [Path("one.txt").open("w", encoding="utf-8")]  # noqa: SIM115

    def on_step(self, step: StepRecord, /) -> None:
        self.files[0].write(f"{step.number}\n")

    def close(self) -> None:
        self.files[0].close()


class SumObserver(_Reporting):
    """Reports how many steps all engines have had."""

    last: ClassVar[list[int]] = [0]

    def __init__(self, options: Any, parts: Any, /) -> None:
        """Leave the list to its class."""

    def on_step(self, step: StepRecord, /) -> None:
        self.last[0] += 1


class FixedPathObserver(_Observer):
    """Writes a file of the name that it should, elsewhere."""

    def __init__(self, options: FaultyPathSettings, parts: Any, /) -> None:
        super().__init__(options, parts)
        Path(options.path.name).touch()


class AsciiObserver(_Observer):
    """Knows letters of ASCII alone."""

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        group.request.tenant.encode("ascii")


OF_REPORTS = {
    # a number for each step that there was
    "BoundlessObserver": lambda self, since: [0] * self.steps,
    # what it goes on to write to
    "ReferringObserver": lambda self, since: self.last,
    "SetObserver": lambda self, since: set(self.last),
    "KeyedObserver": lambda self, since: {7: 0},
    # what comes only once
    "PoppingObserver": lambda self, since: [self.steps, self.__dict__.update(steps=0)][:1],
    # nothing after a number of another engine
    "LateObserver": lambda self, since: [self.steps] * (since <= self.steps),
    # names of any length
    "NamingObserver": lambda self, since: [group.id for group in self.running],
    # numbers that JSON does not have
    "NanObserver": lambda self, since: self.steps or nan,
    # plain data while nothing runs
    "RunningObserver": lambda self, since: list(self.running),
}
globals().update(with_another(__name__, _Reporting, "report", OF_REPORTS))
