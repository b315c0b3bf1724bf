"""Comparison of a component's methods with the interface of its slot."""

from __future__ import annotations

import sys
from abc import ABC
from collections.abc import Collection, Iterator
from functools import cached_property, lru_cache
from inspect import (
    Parameter,
    Signature,
    getattr_static,
    getmembers_static,
    isasyncgenfunction,
    iscoroutinefunction,
    isfunction,
    isgeneratorfunction,
    signature,
)
from typing import Any, Generic, Protocol

_PROPERTIES = (property, cached_property)
_VALUES = (bool, int, float, str)
_METHODS = (staticmethod, classmethod)
_BASES = (ABC, Generic, Protocol, object)


def misfit(made: object, interface: type) -> str | None:
    """Return which method cannot be called as an interface says, where it is and why not.

    ``None``: all can. A method may take more than it is given, if it need not be given that.

    Args:
        made: a component, or its class.
    """
    kind = made if isinstance(made, type) else type(made)
    known = kind.__mro__
    wanted = next((k for k in interface.__mro__ if k in known and k not in _BASES), interface)
    missing = list(getattr(kind, "__abstractmethods__", ()))
    if wanted not in known and kind is not made:
        public = (name for name in dir(wanted) if not name.startswith("_"))
        names = {*public, *(name for name, _ in _members(wanted))}
        missing += [name for name in names if not (_has(kind, name) or hasattr(made, name))]
    if missing:
        return f"{_place(kind)}: {kind.__name__} lacks {', '.join(sorted(missing))}"
    return _wrong_member(kind, wanted)


def uncallable(factory: Any, given: Collection[str]) -> str | None:
    """Return where a factory is and why it cannot be called with what is ``given``, in order.

    ``None``: it can, or how it is called is known to it alone.
    """
    try:
        found = signature(factory)
    except (TypeError, ValueError):
        return None
    try:
        found.bind(*given)
    except TypeError as error:
        made_by = factory if isfunction(factory) else getattr(factory, "__init__", factory)
        name, asked = getattr(factory, "__name__", factory), f"({', '.join(given)}, /)"
        return (
            f"{_place(factory, made_by)}: {name}{_plain(found)} cannot be called with {asked}: "
            f"{error}"
        )
    return None


@lru_cache(maxsize=1024)
def _wrong_member(kind: type, interface: type) -> str | None:
    for source in (interface, *_abilities(kind, interface)):
        for name, wanted in _members(source):
            own = getattr_static(kind, name, wanted)
            if own is not wanted and (problem := _problem(own, wanted)):
                function = getattr(own, "fget", getattr(own, "__func__", own))
                return f"{_place(kind, function)}: {kind.__name__}.{name}{problem}"
    return None


def _abilities(kind: type, interface: type) -> Iterator[type]:
    """Yield the protocols beside an interface all of whose members a class has."""
    for each in vars(sys.modules[interface.__module__]).values():
        is_ability = getattr(each, "_is_runtime_protocol", False)
        if is_ability and all(_has(kind, name) for name, _ in _members(each)):
            yield each


def _has(kind: type, name: str) -> bool:
    """Return whether a class has a member, which is not ``None``; no property is asked."""
    return getattr_static(kind, name, None) is not None


def _members(interface: type) -> list[tuple[str, Any]]:
    """Return the methods, properties and values of an interface."""
    return [
        (name, member)
        for name, member in getmembers_static(interface)
        if not name.startswith("_")
        and (isfunction(member) or isinstance(member, (*_PROPERTIES, *_VALUES)))
    ]


def _problem(own: Any, wanted: Any) -> str | None:
    """Return what is wrong with a member of a class, to be written behind its name."""
    if isinstance(wanted, (*_PROPERTIES, *_VALUES)):
        is_method = isfunction(own) or isinstance(own, _METHODS)
        return ", a method, has to be a property" if is_method else None
    asked = _plain(signature(wanted))
    if isinstance(own, _PROPERTIES) or not (callable(own) or isinstance(own, _METHODS)):
        return f" has to be a method, called with {asked}"
    function = own.__func__ if isinstance(own, _METHODS) else own
    if not isfunction(function):
        return None  # an object that is called: how is known to it alone
    is_async = iscoroutinefunction(function) or isasyncgenfunction(function)
    if is_async and not iscoroutinefunction(wanted):
        return " is async, and nothing awaits it"
    if isgeneratorfunction(function) and signature(wanted).return_annotation in (None, "None"):
        return " is a generator, and nothing iterates over it: its body would never run"
    found = signature(function)
    for only_required in (False, True):
        given = [
            each
            for each in list(asked.parameters.values())[isinstance(own, staticmethod) :]
            if each.kind is not each.VAR_KEYWORD
            and not (only_required and each.default is not each.empty)
        ]
        by_name = {each.name: None for each in given if each.kind is each.KEYWORD_ONLY}
        try:
            found.bind(*[None] * (len(given) - len(by_name)), **by_name)
        except TypeError as error:
            return f"{_plain(found)} cannot be called with {asked}: {error}"
    return None


def _plain(found: Signature) -> Signature:
    """Return a signature without annotations."""
    parameters = [each.replace(annotation=Parameter.empty) for each in found.parameters.values()]
    return Signature(parameters)


def _place(kind: type, function: Any = None) -> str:
    """Return the file and line of a function, or the file of its class."""
    if code := getattr(function, "__code__", None):
        return f"{code.co_filename}:{code.co_firstlineno}"
    return str(getattr(sys.modules.get(kind.__module__), "__file__", kind.__module__))
