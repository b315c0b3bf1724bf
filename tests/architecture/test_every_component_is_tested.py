"""Every first-party component goes through the conformance class of its slot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from architecture.kits import conformance_classes as kit_classes
from architecture.kits import first_party
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_testing import ComponentConformance

TESTS = Path(__file__).parent.parent
FILES = {*(TESTS / "conformance").glob("test_*.py"), TESTS / "gpu" / "test_attention.py"} - {
    TESTS / "conformance" / "test_documented_examples.py"
}


def conformance_classes() -> Iterator[type[ComponentConformance]]:
    """The test classes that name an installed component."""
    for path in sorted(FILES):
        name = f"_conformance_{path.stem}"
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[name]
        for found in vars(module).values():
            if (
                isinstance(found, type)
                and issubclass(found, ComponentConformance)
                and found.__module__ == name
                and found.__name__.startswith("Test")
                and found.make_registry is ComponentConformance.make_registry
            ):
                yield found


@pytest.fixture(scope="module")
def tested() -> set[tuple[str, str]]:
    """Components that have a conformance class, by slot and name."""
    chosen = [(found.slot, found.component) for found in conformance_classes()]
    return {(slot, part if isinstance(part, str) else part["name"]) for slot, part in chosen}


@pytest.mark.parametrize(
    "component", first_party(), ids=lambda component: f"{component.slot}.{component.name}"
)
def test_has_a_conformance_test(component: Component, tested: set[tuple[str, str]]) -> None:
    assert (component.slot, component.name) in tested, (
        f"no test has a class for {component.slot} {component.name!r}"
    )


def test_every_slot_has_a_class_in_the_kit() -> None:
    """Slots of a plugin have theirs in the package ``testing`` beside their interface."""
    assert {slot for slot, _ in kit_classes()} == set(Registry.discover().slots)


def test_no_class_is_about_a_component_that_is_gone(tested: set[tuple[str, str]]) -> None:
    assert tested <= {(component.slot, component.name) for component in first_party()}
