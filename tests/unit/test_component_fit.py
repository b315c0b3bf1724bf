"""Components with a method that is not as their slot's interface says are refused when made."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from inspect import getmembers_static, iscoroutinefunction, signature
from typing import Any

import pytest

from architecture.kits import first_party
from paged_core.cli import main
from paged_core.errors import PluginError, SettingsError
from paged_core.interfaces.observer import Observer
from paged_core.plugins.component import Component, load
from paged_core.plugins.fit import misfit
from paged_core.plugins.making import make_component
from paged_core.plugins.registry import Registry
from paged_testing import build_memory_engine, registry_with
from unit.faulty_settings import FaultySettings, registry_of


async def sleeps(self: Any, *args: Any, **kwargs: Any) -> None: ...


async def streams(self: Any, *args: Any, **kwargs: Any) -> Any:
    yield


def yields(self: Any, *args: Any, **kwargs: Any) -> Any:
    yield


def takes_all(self: Any, *args: Any, **kwargs: Any) -> None: ...


class Cached(cached_property[Any]):
    """One for several classes."""

    __set_name__ = takes_all


WRONG: Mapping[str, Any] = {
    "more is needed": lambda self, a, b, c, d, e, f, g, h: None,
    "a name is needed": lambda self, *args, unheard_of, **kwargs: None,
    "less is taken": lambda self: None,
    "no self": lambda: None,
    "a value": 3,
    "a property": property(takes_all),
    "a cached property": Cached(takes_all),
    "async": sleeps,
    "an async generator": streams,
    "a generator": yields,
    "a generator of the class": classmethod(yields),
}
RIGHT: Mapping[str, Any] = {
    "all is taken": takes_all,
    "of no object": staticmethod(lambda *args, **kwargs: None),
    "of the class": classmethod(takes_all),
    "an object": partial(takes_all, None),
    "more can be given": lambda self, *args, more=3, **kwargs: None,
}
SLOTS = Registry.discover().slots
INTERFACES: Mapping[str, type] = {slot: load(each.interface, slot) for slot, each in SLOTS.items()}


class Faulty:
    """A component; tests put another class, or a function that makes one, in its place."""


Make = Callable[[type], object]


each_slot = pytest.mark.parametrize(
    ("slot", "given"),
    [
        pytest.param(slot, given, marks=[pytest.mark.long] * (number % 2 != (given == "class")))
        for number, slot in enumerate(SLOTS)
        for given in ("class", "function")
    ],
)
"""With a component that is a class, or a function: in the long run with both."""


@pytest.fixture
def make(slot: str, given: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a component of a class, or of a function that makes one of it."""
    registry = registry_of(slot, Faulty)

    def made(kind: type) -> object:
        factory = kind if given == "class" else lambda *_: kind()
        monkeypatch.setattr(sys.modules[__name__], "Faulty", factory)
        return make_component(registry, slot, FaultySettings(), None)

    return made


def members(slot: str) -> dict[str, Any]:
    """Methods, properties and values of an interface, as it has them."""
    found = getmembers_static(INTERFACES[slot])
    kinds = (property, type(takes_all), bool, int, float, str)
    return {name: each for name, each in found if name[0] != "_" and isinstance(each, kinds)}


def kind_of(slot: str, *bases: type, **own: Any) -> type:
    """Return a class whose members take all, but for some."""
    values = {name: each for name, each in getmembers_static(INTERFACES[slot]) if name[0] != "_"}
    found = {
        name: takes_all if isinstance(each, type(takes_all)) else property(takes_all)
        for name, each in members(slot).items()
    }
    given = {"__init__": takes_all, "__len__": takes_all, **values, **found, **own}
    return type("Faulty", bases, {name: each for name, each in given.items() if each is not ...})


def is_wrong(shape: str, wanted: Any) -> bool:
    """Return whether the shape is wrong for a member of an interface."""
    if not isinstance(wanted, type(takes_all)):
        return shape not in ("a value", "a property", "a cached property", "an object")
    harmless = {
        "less is taken": len(signature(wanted).parameters) == 1,
        "async": iscoroutinefunction(wanted),
        "an async generator": iscoroutinefunction(wanted),
        **dict.fromkeys(("a generator", "a generator of the class"), not returns_nothing(wanted)),
    }
    return shape in WRONG and not harmless.get(shape)


def returns_nothing(method: Any) -> bool:
    return signature(method).return_annotation in ("None", None)


@each_slot
def test_a_member_of_a_wrong_shape_is_refused_by_name(slot: str, make: Make) -> None:
    page = f"docs/interfaces/{slot}.md"
    for name, wanted in members(slot).items():
        for shape, own in {**WRONG, **RIGHT}.items():
            kind = kind_of(slot, INTERFACES[slot], **{name: own})
            if not is_wrong(shape, wanted):
                make(kind)
                continue
            with pytest.raises(PluginError, match=rf": Faulty\.{name}\b.*{page}") as refused:
                make(kind)
            assert str(refused.value).startswith(f"{slot} 'faulty', of plugin 'under_test' "), shape


@pytest.mark.parametrize("command", [["doctor"], ["plugins", "faulty"]], ids=str)
def test_no_command_says_that_a_misfit_can_serve(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Faulty", kind_of("evictor", add=lambda self: None))
    registry = registry_of("evictor", Faulty)
    monkeypatch.setattr(Registry, "discover", lambda **_: registry)
    monkeypatch.setattr("paged_plugins.machine.describe_torch", dict)  # which takes seconds
    assert main(command, {"COLUMNS": "400"}) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"no: evictor 'faulty', of .*Faulty\.add\(self\) cannot be called", said)


@each_slot
def test_a_member_that_is_missing_is_refused_by_name(slot: str, make: Make) -> None:
    """A class of no interface is asked, too, unless its objects find the member elsewhere."""
    for name in members(slot):
        with pytest.raises(PluginError, match=f": Faulty lacks {name};"):
            make(kind_of(slot, **{name: ...}))
        make(kind_of(slot, __getattr__=takes_all, **{name: ...}))
    for name in getattr(INTERFACES[slot], "__abstractmethods__", ()):
        with pytest.raises(PluginError, match=f"Faulty.*{name}"):
            make(kind_of(slot, INTERFACES[slot], **{name: ...}))


def test_an_ability_beside_the_interface_is_asked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = kind_of("observers", Observer, report=lambda self: None)
    monkeypatch.setattr(sys.modules[__name__], "Faulty", kind)
    with pytest.raises(PluginError, match=r"report\(self\) cannot be called with \(self, since"):
        make_component(registry_of("observers", kind), "observers", FaultySettings(), None)


@pytest.mark.parametrize("component", first_party(), ids=lambda each: f"{each.slot}.{each.name}")
def test_no_component_of_ours_is_refused(component: Component) -> None:
    with suppress(PluginError):  # it cannot be imported here
        made = component.load()
        assert not isinstance(made, type) or misfit(made, INTERFACES[component.slot]) is None


def refuses() -> str | None:
    return "no such device" if Registry else None


def fails() -> str | None:
    raise LookupError("no such library")


class TakesOptions:
    def __init__(self, options: Any, /) -> None:
        pass


def takes_more(options: Any, context: Any, more: Any, /) -> None: ...


class FollowsNothing:
    """An order of no base class, without ``stable``."""

    def __init__(self, options: Any, context: Any, /) -> None:
        pass

    def key(self, group: Any, now: float, /) -> float:
        return now


@pytest.mark.parametrize(
    ("factory", "check", "message"),
    [
        (FollowsNothing, refuses, "'faulty' cannot be used here: no such device"),
        (FollowsNothing, fails, "its check failed: LookupError: no such library"),
        (TakesOptions, None, r"test_component_fit.py:\d+: TakesOptions\(options, /\) cannot be"),
        (takes_more, None, r"test_component_fit.py:\d+: .*\(options, context, /\): missing .*more"),
        (FollowsNothing, None, "queue_order 'faulty'.*FollowsNothing lacks stable"),
    ],
)
def test_what_is_named_says_why_it_cannot_be_made(
    factory: Any, check: Callable[[], str | None] | None, message: str
) -> None:
    where = f"{__name__}:"
    parts: dict[str, Any] = {"check": where + check.__name__} if check else {}
    part = Component("queue_order", FaultySettings, where + factory.__name__, **parts)
    with pytest.raises((PluginError, SettingsError), match=message):
        build_memory_engine(registry_with(part), queue_order="faulty")
