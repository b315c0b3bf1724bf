"""The examples on the pages of the interfaces pass the conformance class of their slot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Literal

import pytest
from pydantic import create_model

from architecture.snippets import ROOT, blocks
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_plugins.lab.testing import CostModelConformance, RouterConformance
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

SHOWN = {
    "block_allocator": "HighestFirst",
    "evictor": "ShortestPrefix",
    "queue_order": "ShortestPrompt",
    "scheduler": "DecodesFirst",
    "victim": "Youngest",
    "preemption": "SwapLong",
    "observers": "Preemptions",
    "cost_model": "PerToken",
    "router": "FewestTokens",
}


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The examples as modules, ``shown_SLOT``, that a component can name."""
    with chdir(tmp_path_factory.mktemp("shown")):  # some write files
        for slot in SHOWN:
            page = ROOT / "docs" / "interfaces" / f"{slot}.md"
            module = ModuleType(f"shown_{slot}")
            for block in blocks(page):
                if block.runs and block.language == "python":
                    exec(compile(block.body, str(page), "exec", dont_inherit=True), vars(module))
            sys.modules[module.__name__] = module
    yield
    for slot in SHOWN:
        del sys.modules[f"shown_{slot}"]


class _Shown(ComponentConformance):
    """The component that the page of its slot shows."""

    component: ClassVar[str] = "shown"
    max_examples = 10

    def make_registry(self) -> Registry:
        module = sys.modules[f"shown_{self.slot}"]
        base = getattr(module, f"{SHOWN[self.slot]}Settings", ComponentSettings)
        settings = create_model("ShownSettings", __base__=base, name=(Literal["shown"], "shown"))
        # where pickle looks for it
        settings.__module__ = module.__name__
        module.ShownSettings = settings  # type: ignore[attr-defined]
        factory = f"shown_{self.slot}:{SHOWN[self.slot]}"
        return registry_with(Component(self.slot, settings, factory, summary="an example"))


class TestShownAllocator(_Shown, BlockAllocatorConformance):
    pass


class TestShownEvictor(_Shown, EvictorConformance):
    pass


class TestShownOrder(_Shown, QueueOrderConformance):
    pass


class TestShownScheduler(_Shown, SchedulerConformance):
    pass


class TestShownVictim(_Shown, VictimConformance):
    pass


class TestShownPreemption(_Shown, PreemptionConformance):
    pass


class TestShownObserver(_Shown, ObserverConformance):
    def table(self, folder: Path) -> dict[str, str]:
        return {"name": "shown"}


class TestShownCostModel(_Shown, CostModelConformance):
    pass


class TestShownRouter(_Shown, RouterConformance):
    pass
