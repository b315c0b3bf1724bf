"""Real components that raise in one chosen call, whatever their slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paged_core.engine import policies, wiring

Site = tuple[str, str]
"""A slot, and a method or property of its component."""


class InjectedFault(Exception):
    """Raised on purpose."""


class InjectedInterrupt(KeyboardInterrupt):
    """Ctrl-C, on purpose."""


class Injector:
    """Counts the calls of all components, and raises in one of them.

    Args:
        site: where; ``None``: nowhere.
        number: in which call there, from 0.
        after: once the component has done what it was asked for, not before.
        error: what to raise.
    """

    def __init__(
        self,
        site: Site | None = None,
        number: int = 0,
        *,
        after: bool = False,
        error: type[BaseException] = InjectedFault,
    ) -> None:
        self.calls: Counter[Site] = Counter()
        self.raised = False
        self.closed: set[str] = set()
        """Slots whose component was closed."""
        self._site = site
        self._number = number
        self._after = after
        self._error = error

    def call(self, site: Site, original: Any, *args: Any) -> Any:
        number = self.calls[site]
        self.calls[site] += 1
        now = site == self._site and number == self._number
        if now and not self._after:
            self._raise(site)
        result = original(*args)
        if now:
            self._raise(site)
        return result

    def _raise(self, site: Site) -> None:
        self.raised = True
        raise self._error(f"injected into {'.'.join(site)}")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let every engine that is built meanwhile have components that this one watches."""
        original = policies.make_component

        def make(registry: Any, slot: str, options: Any, parts: Any) -> Any:
            component = original(registry, slot, options, parts)
            return watched(self, slot, component)

        policies.make_component = wiring.make_component = make  # type: ignore[attr-defined]
        try:
            yield
        finally:
            policies.make_component = wiring.make_component = original  # type: ignore[attr-defined]


def watched(injector: Injector, slot: str, component: Any) -> Any:
    """Return the component, every call of which goes through ``injector``."""
    kind = type(component)
    names = [name for name in dir(kind) if not name.startswith("_") or name == "__len__"]
    members = {name: getattr(kind, name) for name in names}
    own = {
        name: _wrap(injector, (slot, name), member)
        for name, member in members.items()
        if isinstance(member, property) or callable(member)
    }
    component.__class__ = type(kind.__name__, (kind,), own)
    return component


def _wrap(injector: Injector, site: Site, member: Any) -> Any:
    if isinstance(member, property):
        return property(lambda self: injector.call(site, member.fget, self))

    def method(self: Any, *args: Any) -> Any:
        if site[1] == "close":
            injector.closed.add(site[0])
        return injector.call(site, member, self, *args)

    return method
