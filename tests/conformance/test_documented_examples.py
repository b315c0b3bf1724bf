"""The examples on the pages of the interfaces pass the conformance class of their slot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from types import ModuleType
from typing import ClassVar, Literal

import pytest
from pydantic import create_model

from architecture.snippets import ROOT, blocks
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_plugins.lab.testing import CostModelConformance
from paged_plugins.routing.testing import RouterConformance
from paged_plugins.server.testing import RoutesConformance
from paged_testing import (
    BlockAllocatorConformance,
    ComponentConformance,
    EvictorConformance,
    ObserverConformance,
    PreemptionConformance,
    QueueOrderConformance,
    SchedulerConformance,
    VictimConformance,
    registry_with,
)

pytestmark = pytest.mark.heavy


SHOWN: dict[type[ComponentConformance], str] = {
    BlockAllocatorConformance: "HighestFirst",
    EvictorConformance: "ShortestPrefix",
    QueueOrderConformance: "ShortestPrompt",
    SchedulerConformance: "DecodesFirst",
    VictimConformance: "Youngest",
    PreemptionConformance: "SwapLong",
    ObserverConformance: "Preemptions",
    CostModelConformance: "PerToken",
    RouterConformance: "FewestTokens",
    RoutesConformance: "CountTokens",
}
"""The class of each slot, and the component that the page of the slot shows."""
NAMES = {kind.slot: name for kind, name in SHOWN.items()}


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The examples as modules, ``shown_SLOT``, that a component can name."""
    with chdir(tmp_path_factory.mktemp("shown")):  # some write files
        for slot in NAMES:
            page = ROOT / "docs" / "interfaces" / f"{slot}.md"
            module = ModuleType(f"shown_{slot}")
            for block in blocks(page):
                if block.runs and block.language == "python":
                    exec(compile(block.body, str(page), "exec", dont_inherit=True), vars(module))
            sys.modules[module.__name__] = module
    yield
    for slot in NAMES:
        del sys.modules[f"shown_{slot}"]


class _Shown(ComponentConformance):
    """The component that the page of its slot shows."""

    component: ClassVar[str] = "shown"

    def make_registry(self) -> Registry:
        module = sys.modules[f"shown_{self.slot}"]
        base = getattr(module, f"{NAMES[self.slot]}Settings", ComponentSettings)
        settings = create_model("ShownSettings", __base__=base, name=(Literal["shown"], "shown"))
        # where pickle looks for it
        settings.__module__ = module.__name__
        module.ShownSettings = settings  # type: ignore[attr-defined]
        factory = f"shown_{self.slot}:{NAMES[self.slot]}"
        (record,) = module.paged_core_components()
        return registry_with(replace(record, settings=settings, factory=factory))


for _kind, _name in SHOWN.items():
    globals()[f"Test{_name}"] = type(f"Test{_name}", (_Shown, _kind), {"__module__": __name__})
