"""A copy of each policy under another name, in another package, passes the same tests.

All of them in the long run, else written cases: they find who goes by a name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Literal

import pytest

from conformance import (
    test_allocators,
    test_evictors,
    test_orders,
    test_preemption,
    test_schedulers,
    test_victims,
)
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_testing import ComponentConformance, registry_with


@cache
def copied(slot: str, name: str) -> Component:
    """Return a component made from the same source, as a package of its own would have it."""
    own = Registry.discover().get(slot, name)
    path, _, factory = own.factory.partition(":")
    spec = spec_from_file_location(f"elsewhere_{slot}_{name}", import_module(path).__file__)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    table = {"__annotations__": {"name": Literal["elsewhere"]}, "name": "elsewhere"}
    module.Settings = type(  # type: ignore[attr-defined]
        "Settings", (own.settings,), {**table, "__module__": spec.name, "__qualname__": "Settings"}
    )
    return Component(slot, module.Settings, f"{spec.name}:{factory}", summary=own.summary)


MODULES = (
    test_allocators,
    test_evictors,
    test_orders,
    test_preemption,
    test_schedulers,
    test_victims,
)


def copies() -> Iterator[type[ComponentConformance]]:
    """Yield the first test class of each policy, about its copy."""
    seen = set()
    for name, kind in [each for module in MODULES for each in vars(module).items()]:
        if name.startswith("Test"):
            table = {"name": kind.component} if isinstance(kind.component, str) else kind.component
            part = (kind.slot, table["name"])
            if part in seen:
                continue
            seen.add(part)

            def make_registry(self: Any, part: tuple[str, str] = part) -> Registry:
                return registry_with(copied(*part))

            members = {
                "component": {**table, "name": "elsewhere"},
                "make_registry": make_registry,
                "test_decides_the_same_in_another_process": None,  # a copy is in this one alone
                "test_goes_by_its_own_options_beside_another": None,
                "test_keeps_nothing_of_what_has_left": None,  # slow, and it goes by no name
            }
            yield pytest.mark.long(type(f"{name}Elsewhere", (kind,), members))


COPIES = {kind.__name__: kind for kind in copies()}
globals().update(COPIES)


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_passes_written_cases(name: str) -> None:
    COPIES[name]().check_written()
