"""The base of the conformance classes: the component and its options."""

from __future__ import annotations

import json
import pickle
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from inspect import getsourcefile, getsourcelines, isfunction
from typing import Any, ClassVar, Self
from unittest.mock import patch

import pytest

from paged_core.engine.contexts import Context, Maker, SlotContext
from paged_core.errors import SettingsError
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings, settings_class
from paged_testing.availability import RAISED, CannotBeTested, refusal, said
from paged_testing.engines import (
    first_party,
    registry_with,
)
from paged_testing.options import other_options, unbounded
from paged_testing.shared import check_process, check_shared, shared_state
from paged_testing.unused import unused_options
from paged_testing.use import growth


def settings_round_trip(
    subject: EngineSettings | ComponentSettings | Component | type[ComponentSettings], /
) -> None:
    """Check that settings are the same after JSON, plain data and pickle.

    Args:
        subject: the settings of an engine, the options of a component, or the component itself (or
            its options class), whose defaults are then used.

    Raises:
        AssertionError: a value was lost; the message names the format.
    """
    if isinstance(subject, Component):
        subject = subject.settings
    if isinstance(subject, type):
        subject = subject(**{})
        for name, field in type(subject).model_fields.items():
            assert name == "name" or field.description, (
                f"option {name!r} of {type(subject).__name__} has no description"
            )
    kind: Any = type(subject)
    as_json = subject.model_dump_json()
    assert kind(**json.loads(as_json)) == subject, "JSON loses something"
    assert kind(**subject.model_dump()) == subject, "plain data loses something"
    assert pickle.loads(pickle.dumps(subject)) == subject, "pickling loses something"


def _placed(test: Callable[..., None]) -> Callable[..., None]:
    """Return a test that also looks at the process, and says where the component is if it fails."""

    @wraps(test)
    def run(self: ComponentConformance, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        try:
            test(self, *args, **kwargs)
            check_process()
        except RAISED as error:
            with suppress(Exception):
                said = "\n".join((str(error), *getattr(error, "__notes__", ())))
                if _AT not in said and f"{getsourcefile(self.record.load())}:" not in said:
                    error.add_note(self.place())
            raise

    return run


class ComponentConformance:
    """Base of the conformance classes. A subclass names the component under test::

        class TestMyOrder(QueueOrderConformance):
            component = "my_order"

    and inherits the tests, all of them written cases. The component is looked up among the
    installed ones; to test one without an entry point, override :meth:`make_registry` with
    ``return registry_with(Component(...))``.

    The components beside it are those that come with the core, whatever else is installed.
    """

    slot: ClassVar[str]
    """Settings key of the slot; each conformance class sets it."""
    component: ClassVar[str | Mapping[str, Any]]
    """The name, or a table with ``name`` and options, as in a settings file."""
    max_seconds: ClassVar[float] = 60
    """A test that takes longer fails, where pytest-timeout is installed; it says where it is."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings of the engines, such as the model, or a component that this one asks for."""
    num_uses: ClassVar[int] = 120
    """After so many more uses, neither its memory nor its work for one may have grown."""
    bytes_free: ClassVar[int] = 16 << 10
    """Bytes that may be left once, such as by caches that fill."""
    may_be_skipped: ClassVar[bool] = False
    """True where it is no failure if every case is skipped, such as without a GPU."""
    context: Any = None
    """Parts that the component was made with, such as its `length_predictor`, for `expected()`."""
    _registry: ClassVar[Registry]
    pytestmark: ClassVar[list[pytest.MarkDecorator]]
    _problem: ClassVar[str | None] = None
    """Why it cannot be tested."""
    _request: pytest.FixtureRequest | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if hasattr(cls, "component") and find_spec("pytest_timeout"):  # marks are inherited
            own = vars(cls).get("pytestmark", [])
            cls.pytestmark = [*own, pytest.mark.timeout(cls.max_seconds)]
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and isfunction(test) and not hasattr(test, "hypothesis"):
                setattr(cls, name, _placed(test))
        for name in _LAST:  # pytest runs them in order of classes
            setattr(cls, name, getattr(cls, name))

    def make_registry(self) -> Registry:
        """The registry that has the component."""
        return registry_with()

    @property
    def registry(self) -> Registry:
        """The registry, made once for each class, without plugins that the tests do not name."""
        kind = type(self)
        if "_registry" not in vars(kind):
            named = {**self.settings, self.slot: self._table}
            tables = {s: {"name": t} if isinstance(t, str) else t for s, t in named.items()}
            wanted = [(s, str(t.get("name"))) for s, t in tables.items() if isinstance(t, Mapping)]
            kind._registry = first_party(self.make_registry(), *wanted)
        return kind._registry

    @property
    def record(self) -> Component:
        """The component's record, as its plugin yields it."""
        return self.registry.get(self.slot, self._table["name"])

    @property
    def options(self) -> ComponentSettings:
        """Its options."""
        return self.record.settings(**self._table)

    def build(self, parts: object) -> Any:
        """Build the component as an engine does."""
        if isinstance(parts, Context):
            settings = settings_class(self.registry)(**{**self.settings, self.slot: self._setting})
            parts = replace(parts, maker=Maker(settings, self.registry))
        self.context = parts
        made = self.record.load()(self.options, parts)
        self.registry.refuse_misfit(self.slot, self.record.name, made)
        return made

    @pytest.fixture(autouse=True)
    def where_it_can_be_tested(self, request: pytest.FixtureRequest) -> None:
        """Skip the test if the component cannot be tested.

        The name comes late in the alphabet, in which fixtures are made: those of subclasses first.
        """
        self._request = request
        if seconds := signal.getitimer(signal.ITIMER_REAL)[0]:  # of pytest-timeout
            signal.setitimer(signal.ITIMER_REAL, seconds, seconds)  # again, if it is caught
        test = request.function.__name__
        if test not in _OF_AVAILABILITY:
            try:
                reason = self.refusal()
            except CannotBeTested:
                pytest.skip("it cannot be tested; test_can_be_imported says why")
            if reason is not None and not hasattr(ComponentConformance, test):
                pytest.skip(reason)

    def refusal(self) -> str | None:
        """Return the reason of the component's check not to run here; ``None``: it is imported.

        Raises:
            CannotBeTested: the component, its options or its check are broken.
        """
        kind = type(self)
        if kind._problem is None:
            try:
                return refusal(self.registry, self.record, self.options)
            except CannotBeTested as error:
                kind._problem = str(error)
            except RAISED as error:
                kind._problem = said(error)
        raise CannotBeTested(kind._problem)

    # ------------------------------------------------------------------ tests for every slot

    def test_can_be_imported(self) -> None:
        """Its plugin, options, module and methods; its check may refuse, with a reason."""
        with suppress(CannotBeTested):
            self.refusal()
        if problem := type(self)._problem:
            pytest.fail(problem, pytrace=False)

    def test_settings_survive_a_round_trip(self) -> None:
        settings_round_trip(self.record)
        settings_round_trip(self.options)

    def test_says_in_a_line_what_it_is(self) -> None:
        assert self.record.summary, "its Component has no summary"
        assert "\n" not in self.record.summary

    def test_is_listed_under_the_present_interface(self) -> None:
        assert self.record.interface_version == self.registry.slots[self.slot].version

    @_placed
    def test_keeps_nothing_of_what_has_left(self) -> None:
        """Ids are arbitrary, so what is kept for each request grows for ever."""
        if reason := self.refusal():
            pytest.skip(reason)
        grown, before, after = self.growth()
        assert grown < self.bytes_free, (
            f"{self.num_uses} uses that have ended still take {grown} bytes"
        )
        assert after <= 2 * before + 8, (
            f"a use takes {before:.0f} instructions, {after:.0f} after {self.num_uses} others "
            "that have ended"
        )

    def test_not_every_case_is_skipped(self) -> None:
        """Or a class that tests nothing would look like one that passes. The last test of each."""
        if self.may_be_skipped or type(self)._problem is not None:
            return
        reason = self.refusal() or _only_skipped(self._request)
        if reason is not None:
            pytest.fail(
                f"every case was skipped: {reason}; if that is as it should be, set "
                f"`may_be_skipped = True` in {type(self).__name__}",
                pytrace=False,
            )

    @_placed
    def test_numbers_have_bounds(self) -> None:
        """Or what was never thought of is accepted, such as a negative number."""
        found = [
            f"{name!r} of {self.record.settings.__name__}"
            for name in unbounded(self.record.settings)
        ]
        for key, table in self._own_parts():
            kind = self.registry.get(key, table["name"]).settings
            found += [f"{name!r} of {kind.__name__}" for name in unbounded(kind)]
        assert not found, (
            f"nothing bounds the number {', '.join(found)} from below: write PositiveInt, "
            "NonNegativeFloat or Field(ge=...), with a negative number where those mean something"
        )

    @_placed
    def test_reads_each_of_its_options(self) -> None:
        """An option that no code reads has no effect, whatever its value is."""
        if self.refusal():
            pytest.skip("it is not imported")
        found = unused_options(self.record.settings, self.record.load())
        assert not found, (
            f"{', '.join(map(repr, found))} of {self.record.settings.__name__} has no effect: no "
            f"code of {self.package} reads it, or reads what it is assigned to"
        )

    @_placed
    def test_asks_once_for_what_it_needs_of_a_slot_of_a_package(self) -> None:
        """By ``make(slot)`` when it is made: each call makes a component that knows nothing."""
        named = [key for key, _ in self._own_parts() if key in self.settings]
        if not named:
            pytest.skip("its settings choose nothing of a slot that a package brings")
        if reason := self.refusal():
            pytest.skip(reason)
        with patch.object(Maker, "__call__", autospec=True, side_effect=Maker.__call__) as made:
            use, counts = self.uses(), list[Counter[str]]()
            for number in range(6):
                use(number)
                counts.append(Counter(call.args[1] for call in made.call_args_list))
        for key in named:
            assert counts[-1][key], (
                f"nothing calls make({key!r}), so it has no effect what the settings choose there"
            )
            assert counts[-1][key] == counts[1][key], (
                f"make({key!r}) is called {counts[-1][key] - counts[1][key]} times in four uses: "
                "each component that it makes is new and knows nothing of what was before"
            )

    @_placed
    def test_holds_with_other_options(self) -> None:
        """Small and large numbers, and all choices, as far as its settings class permits them.

        An ``expected()`` is asked that reads ``self.options``.
        """
        if reason := self.refusal():
            pytest.skip(reason)
        registry, others = self.registry, self.other_settings()
        tried = "\n".join(str(*each.values()) for each in others)
        tried = tried or "none: its settings class has nothing to vary"
        if self._request is not None:
            self._request.node.add_report_section("call", "options that were tried", tried)
        follows = self.expectation_reads("options")
        silent: dict[str, Any] = {} if follows else {"expected": lambda self, *_: None}
        for each in others:
            (table,) = each.values()
            other = self.variant(**each, **silent)
            try:
                if refusal(registry, self.record, other.options) is None:
                    other.check_written()
            except RAISED as error:
                if isinstance(error, SettingsError) and "" in table.values():
                    continue  # which texts are names is known when it is made
                try:
                    self.check_written()
                except RAISED:
                    raise error from None  # with any options
                error.add_note(
                    f"with the options {table}; with its own it passes: mend what they lead to, or "
                    "bound them in the settings class, as by Field(ge=..., le=...) or Literal; "
                    f"these were tried:\n{tried}"
                )
                raise

    # ------------------------------------------------------------------ for subclasses

    def expectation_reads(self, name: str) -> bool:
        """Return whether ``expected()`` reads an attribute, such as `options` or `context`."""
        stated = getattr(getattr(type(self), "expected", None), "__code__", None)
        return stated is not None and name in stated.co_names

    def variant(self, **attributes: Any) -> Self:
        """Return the same cases, of a class with other attributes."""
        kind, members = type(self), {"_registry": self.registry, **attributes}
        made: Self = type(kind.__name__, (kind,), members)()
        vars(made).update(vars(self))
        return made

    def check_written(self) -> None:
        """Check written cases, with any options."""
        if not self.registry.slots[self.slot].interface.startswith(_OURS):
            self.build(SlotContext(settings=settings_class(self.registry)()))
        with suppress(pytest.skip.Exception, SettingsError):
            use = self.uses()
            for number in range(3):
                use(number)

    def other_settings(self) -> list[dict[str, Any]]:
        """Other options to try, each as an attribute of the class and its value: ``component``, or
        ``settings`` with other options of what it may ask for of a package's own slot."""
        own = [{"component": table} for table in other_options(type(self.options), self._table)]
        for key, table in self._own_parts():
            kind = self.registry.get(key, table["name"]).settings
            own += [
                {"settings": {**self.settings, key: each}} for each in other_options(kind, table)
            ]
        return own

    def _own_parts(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Slots of packages of their own, with the tables of the components that are chosen."""
        for key, slot in self.registry.slots.items():
            named = self.settings.get(key, slot.default)
            table = {"name": named} if isinstance(named, str) else named
            if not slot.interface.startswith(_OURS) and isinstance(table, Mapping):
                yield key, table

    def uses(self) -> Callable[[int], object]:
        """Return what uses the component once more, for requests of this number, to their end."""
        pytest.skip("no use of it ends")

    def growth(self) -> tuple[int, float, float]:
        """Return bytes that ended uses leave, and instructions of one before and after them."""
        self.uses()(0)
        shared = shared_state(self.package, with_caches=True)
        (use := self.uses())(0)
        check_shared(shared, self.package, "one more that is made and used as the first changes")
        return growth(use, self.num_uses, self.package, self.bytes_free)

    @property
    def package(self) -> str:
        """The top-level package of the component."""
        return self.record.factory.partition(".")[0].partition(":")[0]

    def place(self) -> str:
        """Return where the component is."""
        made = self.record.load()
        return f"{_AT} is at {getsourcefile(made)}:{_first_line(made)}"

    @property
    def _table(self) -> Mapping[str, Any]:
        chosen = self.component
        return {"name": chosen} if isinstance(chosen, str) else chosen

    @property
    def _setting(self) -> Any:
        """Setting that chooses the component."""
        return [self._table] if self.registry.slots[self.slot].many else self._table


def _first_line(made: Any) -> int:
    """Return the line of a factory in its file; of a class that no text defines, of a method."""
    with suppress(OSError):
        return getsourcelines(made)[1]
    methods = (each.__code__.co_firstlineno for each in vars(made).values() if isfunction(each))
    return min(methods, default=1)


_OURS = ("paged_core.", "paged_plugins.")
"""Packages of the interfaces of which the slots have a conformance class."""
_AT = "the code of the component"
_LAST = (
    "test_holds_with_other_options",
    "test_keeps_nothing_of_what_has_left",
    "test_not_every_case_is_skipped",
)
_OF_AVAILABILITY = ("test_can_be_imported", "test_not_every_case_is_skipped")


def _only_skipped(request: pytest.FixtureRequest | None) -> str | None:
    """Return the reason of the last case of the class that was skipped, if all were.

    ``None`` if another ran, none did, or the outcomes are not kept: a process of pytest-xdist runs
    only some of the cases.
    """
    reporter = request and request.config.pluginmanager.get_plugin("terminalreporter")
    if not request or not reporter:
        return None
    here = request.node.parent.nodeid + "::"
    reasons = []
    for outcome, reports in reporter.stats.items():
        for report in reports:
            name = getattr(report, "nodeid", "").removeprefix(here).partition("[")[0]
            if "::" in name or hasattr(ComponentConformance, name):
                continue  # of another class, or about no case
            if outcome == "skipped":
                reasons.append(report.longrepr[-1].removeprefix("Skipped: "))
            elif outcome in ("passed", "failed", "error"):
                return None
    return reasons[-1] if reasons else None
