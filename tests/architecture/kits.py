"""The conformance kits: the core's, and those of plugins that declare slots."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry


def kit_modules() -> list[str]:
    """Return the core's kit, and the package ``testing`` beside the interface of other slots."""
    found = {"paged_testing": None}
    for slot in Registry.discover().slots.values():
        package = slot.interface.partition(":")[0].rpartition(".")[0].removesuffix(".interfaces")
        if package != "paged_core":
            found[f"{package}.testing"] = None
    return list(found)


def conformance_classes() -> Iterator[tuple[str, str]]:
    """Yield each slot that a kit has a class for, and the name of the class."""
    for module in kit_modules():
        for name, kind in vars(import_module(module)).items():
            if isinstance(kind, type) and name.endswith("Conformance") and hasattr(kind, "slot"):
                yield kind.slot, name


def first_party() -> list[Component]:
    """Return the components of the project itself."""
    ours = [p for p in Registry.discover().plugins if p.distribution == "paged-core"]
    return [component for plugin in ours for component in plugin.components]
