"""Conformance of observers: they watch, and change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import fields, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest
from psutil import Process

from paged_core.engine.engine import Engine
from paged_core.errors import (
    AdmissionRefused,
    RequestError,
    error_text,
)
from paged_core.interfaces.admission import Refused
from paged_core.interfaces.observer import (
    BlockEvent,
    CacheEvent,
    Observer,
    StepRecord,
    SupportsReport,
)
from paged_core.sequence import SequenceGroup
from paged_testing.component import ComponentConformance
from paged_testing.doubles import FailingExecutor
from paged_testing.engines import (
    BOTH_PREEMPTIONS,
    build_memory_engine,
    check_observers,
    go_on,
    serve,
    serves_again,
)
from paged_testing.happenings import HAPPENINGS, deciding, happens_in_turn
from paged_testing.policy_subjects import extreme_requests, untouched, written_requests
from paged_testing.served import check_served
from paged_testing.use import growth, instructions, waits_watched
from paged_testing.workloads import (
    FOR_EVERY_POLICY,
    SITUATIONS,
    Situation,
    Workload,
    simple_request,
    unlike,
)

_ABORTED = (
    "the host has room for one of two",
    "two forked groups compete and are swapped",
    "the best of several are wanted",
)
"""Situations in which requests are aborted at any moment."""


class ObserverConformance(ComponentConformance):
    """Subclass it for an observer. Override :meth:`table` if its options name files::

    class TestMyLog(ObserverConformance):
        component = "my_log"

        def table(self, folder):
            return {"name": "my_log", "path": str(folder / "log")}
    """

    slot: ClassVar[str] = "observers"
    num_uses: ClassVar[int] = 160
    bytes_free: ClassVar[int] = 24 << 10
    """Room for the part of a text file that is not yet written."""

    @pytest.fixture(autouse=True)
    def _in_a_folder_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        self._folder = tmp_path

    def table(self, folder: Path) -> dict[str, Any]:
        """Its name, and options that differ from :attr:`component`; it must write its files into
        ``folder``."""
        return dict(self._table)

    @property
    def watching(self) -> dict[str, Any]:
        """The component with its options."""
        return {**self._table, **self.table(self._folder)}

    def watched_engine(self, **values: Any) -> tuple[Engine, Witness]:
        """An engine with the observer, and a witness that gets the same events after it.

        What requests are like is looked at before the observer hears of an event, and after.
        """
        witness, self._open = Witness(), _open_files()
        observers: list[Any] = [witness.before, self.watching, witness]
        engine = build_memory_engine(self.registry, observers=observers, **values)
        places = {witness.before: 0, witness: 2}
        engine.observers.sort(key=lambda observer: places.get(observer, 1))
        return engine, witness

    def uses(self) -> Callable[[int], object]:
        """Events of a few requests from arrival to end, and of some that end otherwise."""
        return self._serves_in_any_way(self._small_engine())

    def growth(self) -> tuple[int, float, float]:
        """Also by uses of an engine that is never idle."""
        grown, before, after = super().growth()
        (folder := self._folder / "lasting").mkdir(exist_ok=True)
        engine = self._small_engine(folder, num_blocks=24)
        lasting = growth(partial(go_on, engine), self.num_uses, self.package, self.bytes_free)
        check_observers(engine)
        return max(grown, lasting[0]), before, after

    def _serves_in_any_way(self, engine: Engine) -> Callable[[int], object]:
        serves = serves_again(engine)

        def use(number: int) -> None:
            serves(number)
            happens_in_turn(engine, number)

        return use

    def test_waits_for_nothing(self) -> None:
        """The next step comes after it; files may be written."""
        use = self.uses()
        with waits_watched(self.package, "the engine", files=False):
            use(0)

    def _small_engine(self, folder: Path | None = None, **values: Any) -> Engine:
        table = {**self.watching, **self.table(folder)} if folder else self.watching
        small = {"num_blocks": 7, "max_model_len": 24, **BOTH_PREEMPTIONS, **values}
        engine = build_memory_engine(self.registry, observers=[table], **small)
        if self._request is not None:
            self._request.addfinalizer(engine.close)
        return engine

    def check_still_there(self, engine: Engine) -> None:
        """Check that no observer was dropped because it raised, and that requests are untouched."""
        check_observers(engine)
        witness = engine.observers[-1]
        assert isinstance(witness, Witness)
        assert not witness.touched, f"when it hears of an event, {witness.touched}"

    def check_closes(self, engine: Engine) -> None:
        """Check that no observer was dropped, that none is when the engine closes, with a request
        that has not ended, and that its files are closed then."""
        self.check_still_there(engine)
        engine.add(simple_request("the last one", 5, 3))
        engine.close()
        self.check_still_there(engine)
        names = sorted(path for path, _ in _open_files() - self._open)
        assert not names, f"close() leaves files open: {', '.join(names)}"
        before = _contents(self._folder)
        for observer in engine.observers:
            try:
                observer.close()
            except Exception as error:
                raise AssertionError(
                    f"close() raises when it is called a second time: {error_text(error)}; the "
                    "second call is to change nothing"
                ) from error
        assert _contents(self._folder) == before, "a second close() changed its files"

    def test_two_engines_have_observers_of_their_own(self) -> None:
        """Reports and files of each are as where it is alone, in all that can be repeated.

        Requests of both may have the same ids.
        """
        alone = [[self._told(number)[0] for _ in range(2)] for number in range(2)]
        for number, found in enumerate(self._told(0, 1)):
            for place, value in found.items():
                before = [each.get(place) for each in alone[number]]
                assert before[0] != before[1] or value == before[0], (
                    f"beside that of another engine its {place} is {value}, alone {before[0]}: "
                    "keep what one knows in itself, not in its class or module"
                )

    def _told(self, *numbers: int) -> list[dict[str, object]]:
        """Return what observers report and write in engines that step in turns, until each ends."""
        engines, found = dict[Engine, Path](), list[dict[str, object]]()
        for number in numbers:
            folder = Path(mkdtemp(dir=self._folder))
            table = {**self._table, **self.table(folder)}
            engine = build_memory_engine(self.registry, observers=[table])
            for name in "AB"[: number + 1]:
                engine.add(simple_request(name, 5 + number, 3 + 4 * number))
            engines[engine] = folder
        while engines:
            for engine, folder in list(engines.items()):
                engine.step()
                if engine.has_unfinished:
                    continue
                check_observers(engine)
                (observer,), facts = engine.observers, dict[str, object]()
                if isinstance(observer, SupportsReport):
                    facts.update(_counts("report", observer.report(0)))
                engine.close()
                assert _contents(folder) or str(folder) not in str(table), (
                    f"its options name {folder}, and no file is there after close()"
                )
                for path, content in _contents(folder).items():
                    facts[f"number of lines in {path.name}"] = len(content.splitlines())
                found.append(facts)
                del engines[engine]
        return found

    def test_handles_steps_in_which_nothing_is_planned(self) -> None:
        """Or without any step."""
        for number in (0, 3):
            engine, _ = self.watched_engine()
            for _ in range(number):
                engine.step()
            self.check_closes(engine)

    def test_reports_plain_data_of_bounded_size(self) -> None:
        """A report stays as it was: a front end reads it while the engine goes on."""
        engine = self._small_engine()
        observer = engine.observers[0]
        if not isinstance(observer, SupportsReport):
            pytest.skip("it reports nothing")
        use, numbers = self._serves_in_any_way(engine), count()
        sizes, reported = [], list(_reports(observer))
        for request in written_requests():
            with suppress(RequestError):
                engine.add(request)
        while engine.has_unfinished:
            engine.step()
            reported += _reports(observer)
        check_observers(engine)
        for _ in range(2):
            for _ in range(self.num_uses):
                use(next(numbers))
            found = list(_reports(observer))
            sizes.append(max(len(text) for _, text in found))
            reported += found
        assert all(json.dumps(report) == text for report, text in reported), (
            "an earlier report has changed; return a copy"
        )
        assert sizes[1] <= 1.25 * sizes[0] + 64, (
            f"a report has {sizes[0]:,} characters after {self.num_uses} uses that have ended, "
            f"{sizes[1]:,} characters after as many more: its size has to be bounded"
        )
        for field in ("id", "tenant", "session", "cache_salt"):  # also of one that is preempted
            named: dict[str, dict[str, Any]] = {each: {field: 50_000 * each} for each in "xyzw"}
            *added, refused = (replace(simple_request(each, 7, 9), **named[each]) for each in named)
            for each in added:
                engine.add(each)
            with deciding(engine, Refused("all are")), suppress(AdmissionRefused):
                engine.add(refused)
            while engine.has_unfinished:
                engine.step()
                longest = max(len(text) for _, text in _reports(observer))
                assert longest <= 1.25 * sizes[1] + 16_384, (
                    f"a report has {longest:,} characters where the {field} of a request has "
                    f"50,000, {sizes[1]:,} before: cut the texts of requests"
                )

    def check_written(self) -> None:
        super().check_written()
        with suppress(pytest.skip.Exception):
            self.test_a_reader_who_goes_on_hears_all()

    def test_a_reader_who_goes_on_hears_all(self) -> None:
        """A request ends before each report, and more of them than are kept."""
        engine = self._small_engine()
        observer = engine.observers[0]
        whole = observer.report(0) if isinstance(observer, SupportsReport) else None
        named = whole.items() if isinstance(whole, Mapping) else ()
        readers = {key: _Reader() for key, value in named if type(value) is int}
        if not readers:
            pytest.skip("its reports name no number to go on with")
        assert isinstance(observer, SupportsReport)
        for number in range(self.num_uses):
            asked = unlike([simple_request("A", 5, 3)], number)[0]
            serve(engine, Workload(((0, asked),)))
            whole = observer.report(0)
            for key, reader in readers.items():
                reader.hear(observer.report(reader.since), _followed(observer, key), key)
        keys = [key for key in ("cursor", "next") if key in readers] or [*readers]
        reader = min((readers[key] for key in keys), key=lambda each: each.sizes[-1])
        if reader.sizes[-1] >= _size(whole):
            return  # all is reported to each
        assert not reader.missed, reader.missed
        soon, late = min(reader.sizes[1:3]), min(reader.sizes[3:])
        assert late >= soon, (
            f"a reader who gives each number back hears {soon} values of a request at first, and "
            f"{late} later: also what comes after more than is kept is to be reported"
        )

    def test_requests_that_run_may_be_many_or_long(self) -> None:
        """A step takes work in proportion to them, not to their tokens."""
        costs = list[int]()
        for number, length in ((32, 3), (128, 3), (1, 64), (1, 1024)):
            engine = self._small_engine(num_blocks=512, block_size=2048, max_model_len=4096)
            for place in range(number):
                engine.add(simple_request(f"r{place}", length, 3 * length))
            while engine.num_steps < length or engine.scheduler.queues().waiting:
                engine.step()
            costs.append(instructions(engine.step, self.package))
            check_observers(engine)
        assert costs[1] <= 6 * costs[0] + 400 and costs[3] <= 2 * costs[2] + 400, (
            f"of a step it hears in {costs[0]} instructions and items while 32 requests decode, "
            f"{costs[1]} while 128 do, {costs[2]} while one of 128 tokens does, {costs[3]} where "
            "that has 2,048: look at each a few times, not at its tokens"
        )

    def test_many_requests_may_wait(self) -> None:
        """A step takes work in proportion to them, and reports stay as large."""
        sizes, costs, events = list[int](), list[int](), list[int]()
        for number in (1024, 4096):
            engine = self._small_engine()
            for place in range(number):
                engine.add(simple_request(f"r{place}", (1, 2, 3), 2))
            costs.append(instructions(engine.step, self.package))
            one = simple_request("one", (1, 2, 3), 2)
            for call in (partial(engine.add, one), partial(engine.abort, one.id)):
                events.append(instructions(call, self.package))
            check_observers(engine)
            if isinstance(observer := engine.observers[0], SupportsReport):
                sizes.append(max(len(text) for _, text in _reports(observer)))
        assert costs[1] <= 6 * costs[0] + 400, (
            f"of a step it hears in {costs[0]} instructions and items while 1,024 requests are "
            f"there, {costs[1]} while 4,096 are: look at each a few times"
        )
        assert events[2] <= 2 * events[0] + 400 and events[3] <= 2 * events[1] + 400, (
            f"of a request that is added, and aborted, it hears in {events[:2]} instructions and "
            f"items while 1,024 are there, {events[2:]} while 4,096 are"
        )
        assert not sizes or sizes[1] <= 1.25 * sizes[0] + 64, (
            f"a report has {sizes[0]:,} characters while 1,024 requests are there, {sizes[1]:,} "
            "while 4,096 are: its size has to be bounded"
        )

    def test_handles_steps_that_fail(self) -> None:
        for failures in ({"before": {1}}, {"after": {1}}):
            engine, _ = self.watched_engine()
            FailingExecutor.install(engine, **failures)
            serve(
                engine, Workload(((0, simple_request("A", 5, 3)), (2, simple_request("B", 5, 3))))
            )
            self.check_closes(engine)

    @pytest.mark.parametrize("what", HAPPENINGS)
    def test_handles_it_when(self, what: str) -> None:
        """While other requests run, while none does, and when it happens again, to one of the same
        id; texts may have any letters and length, in each field that has one."""
        engine, _ = self.watched_engine()
        odd = [(0, each) for each in extreme_requests()]
        for number in range(2):
            HAPPENINGS[what](engine, "A")
            serve(engine, Workload(((0, simple_request("B", 5, 8)), *odd)))
            engine.add(simple_request(f"C{number}", 5, 8))
            engine.step()
            HAPPENINGS[what](engine, "A")
            serve(engine, Workload(()))
        self.check_closes(engine)

    @pytest.mark.parametrize("name", _ABORTED)
    def test_handles_what_is_aborted_at_any_moment_when(self, name: str) -> None:
        """Each request, before it runs, while it runs, is swapped out or was preempted; also of a
        step that is reported after its end."""
        situation = SITUATIONS[name]
        requests = situation.workload.requests
        for is_ahead in (False, True):
            engine, _ = self.watched_engine(**situation.values({"async_scheduling": is_ahead}))
            for step, (_, request) in product(range(0, 14, 2), requests):
                serve(engine, Workload(requests, ((step, request.id),)))
            self.check_closes(engine)

    @pytest.mark.parametrize("situation", FOR_EVERY_POLICY.values(), ids=FOR_EVERY_POLICY)
    def test_handles_every_event_and_changes_nothing_when(self, situation: Situation) -> None:
        """Requests are admitted, preempted, swapped out and in, ignored, aborted and finished."""
        values, workload = situation.values({}), situation.workload
        engine, watched = self.watched_engine(**values)
        check_served(engine, workload, serve(engine, workload))
        alone = Witness()
        serve(build_memory_engine(self.registry, observers=[alone], **values), workload)
        for number, (event, other) in enumerate(zip(watched.events, alone.events, strict=False)):
            assert event == other, f"event {number} is {event}, without the observer {other}"
        count, expected = len(watched.events), len(alone.events)
        assert count == expected, f"{count} events with the observer, {expected} without it"
        self.check_closes(engine)


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _open_files() -> set[tuple[str, int]]:
    return {(each.path, each.fd) for each in Process().open_files()}


def _counts(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the numbers in plain data that count something, and how much there is of it."""
    if isinstance(value, Mapping | list):
        yield f"length of {place}", len(value)
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            assert isinstance(key, str) or not isinstance(value, Mapping), (
                f"{place} has the key {key!r}: JSON has texts alone"
            )
            yield from _counts(f"{place}[{key!r}]", each)
    elif isinstance(value, int) and value < 1_000_000:  # no time
        yield place, value


_MOST_PAGES = 256
"""Reports, each of which goes on with the one before it."""
_UNKNOWN = 2**62
"""Number that no report names, nor less than none."""


def _reports(observer: SupportsReport) -> Iterator[tuple[object, str]]:
    """Yield reports since the beginning, a number of its own, one of an engine before, and the
    numbers that the first names, as several readers ask for them."""
    first = observer.report(0)
    known = {0: dict(_counts("the report", first))}
    values = first.values() if isinstance(first, Mapping) else ()
    named = [each for each in values if isinstance(each, int)]
    for since in (0, 1, _UNKNOWN, -_UNKNOWN, *named, 0, 1, *named):
        report = observer.report(since)
        facts = dict(_counts("the report", report))
        before = known.setdefault(since % _UNKNOWN, facts)
        why = (
            "what report(0) does: a number that it did not give, as one of an engine before, is "
            "answered as 0"
            if abs(since) == _UNKNOWN
            else "what it did before others asked: each front end is to hear all that came after "
            "the number that it names"
        )
        assert facts == before, f"report({since}) returns {report}, not {why}"
        try:
            yield report, json.dumps(report, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"report({since}) returns no plain data: {error}") from None


def _size(value: object) -> int:
    """Return how many values there are in plain data."""
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 1


def _followed(observer: SupportsReport, key: str) -> dict[str, Any]:
    """Return what a reader hears at once: a report since the beginning, and those that follow it
    where each is cut."""
    report = observer.report(0)
    whole = {name: [*each] if isinstance(each, list) else each for name, each in report.items()}
    for _ in range(_MOST_PAGES):
        report = observer.report(report[key])
        lists = {name: each for name, each in report.items() if isinstance(each, list)}
        more = {n: [e for e in each if e not in whole.get(n, ())] for n, each in lists.items()}
        if not any(more.values()):
            break
        for name, entries in more.items():
            whole.setdefault(name, []).extend(entries)
    return whole


class _Reader:
    """One who asks for reports, each with the number that the one before it named."""

    def __init__(self) -> None:
        self.since = 0
        self.sizes = list[int]()
        self.logs: dict[str, tuple[list[object], list[object]]] | None = None
        """Lists that every request makes longer: all of each, and what was heard of it."""
        self.repeats = dict[str, bool]()
        """By the name of a list, whether reports tell all of it again."""
        self.missed = ""
        """Entries that it heard and should not have, or should have heard."""

    def hear(self, report: Mapping[str, Any], whole: Mapping[str, Any], key: str) -> None:
        """Take a report, and what one since the beginning is now, with those that follow it."""
        since, self.since = self.since, report[key]
        self.sizes.append(_size(report))
        if self.logs is None:
            self.logs = {name: ([], []) for name, each in whole.items() if isinstance(each, list)}
        before, self.logs = self.logs, {}
        for name, (earlier, heard) in before.items():
            now, more = [*whole[name]], [*report.get(name, ())]
            if now == earlier and (lost := [each for each in more if each not in now]):
                self.missed = f"report({since}) has the {name} {lost}, and report(0) has not"
            if len(now) == len(earlier) or now[: len(earlier)] != earlier:
                continue  # some is not kept
            repeats = more == now
            self.logs[name] = now, now if earlier and repeats else heard + more
            if earlier and self.repeats.setdefault(name, repeats) != repeats:
                self.missed = (
                    f"only some reports have all the {name} again; report({since}): {more}"
                )
            if self.logs[name][1] != now and not self.missed:
                self.missed = (
                    f"report({since}), {key!r} of the report before, has the {name} {more}; with "
                    f"those heard before these are {heard + more}, and report(0) has {now}"
                )


class _Before(Observer):
    """Looks at the requests of an event before the component hears of it."""

    def __init__(self) -> None:
        self.looked = ExitStack()

    def on_step(self, step: StepRecord, /) -> None:
        queues = step.queues
        self.looked.enter_context(untouched((*queues.running, *queues.waiting, *queues.swapped)))

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self.looked.enter_context(untouched([group]))


class Witness(Observer):
    """Records the events as values that can be compared, and what the component changed."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.before = _Before()
        self.touched = ""

    def _look(self) -> None:
        try:
            self.before.looked.close()
        except AssertionError as error:
            self.touched = self.touched or str(error)

    def on_step(self, step: StepRecord, /) -> None:
        self._look()
        facts = {each.name: copy(getattr(step, each.name)) for each in fields(step)}
        queues = (step.queues.running, step.queues.waiting, step.queues.swapped)
        held = [[group.id for group in queue] for queue in queues]
        self.events.append({**facts, "seconds": [*step.seconds], "queues": held})

    def on_request(self, group: SequenceGroup, event: str, /) -> None:
        self._look()
        self.events.append((group.id, event))

    def on_block(self, event: BlockEvent, /) -> None:
        self.events.append(event)

    def on_cache(self, event: CacheEvent, /) -> None:
        self.events.append(event)
