"""The examples on the pages of interfaces and plugins pass the conformance class of their slot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from importlib import import_module
from typing import ClassVar

import pytest

from architecture.snippets import ROOT, blocks, write
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.sequence import Status
from paged_plugins.lab.testing import CostModelConformance
from paged_plugins.routing.testing import RouterConformance
from paged_plugins.server.parsers.testing import (
    ReasoningParserConformance,
    ToolParserConformance,
)
from paged_plugins.server.testing import RoutesConformance, ServerConformance
from paged_testing import (
    AdmissionConformance,
    AttentionConformance,
    BlockAllocatorConformance,
    CommunicatorConformance,
    ComponentConformance,
    EvictorConformance,
    ExecutorConformance,
    GrammarConformance,
    LengthPredictorConformance,
    ObserverConformance,
    PreemptionConformance,
    QueueOrderConformance,
    RunnerConformance,
    SchedulerConformance,
    VictimConformance,
    build_memory_engine,
    registry_with,
    simple_request,
)

pytestmark = pytest.mark.long


SHOWN: dict[type[ComponentConformance], str] = {
    AdmissionConformance: "OddTenants",
    LengthPredictorConformance: "AsPrompt",
    BlockAllocatorConformance: "HighestFirst",
    EvictorConformance: "ShortestPrefix",
    QueueOrderConformance: "ShortestPrompt",
    SchedulerConformance: "DecodesFirst",
    VictimConformance: "Youngest",
    PreemptionConformance: "SwapLong",
    ObserverConformance: "Preemptions",
    AttentionConformance: "Float32Only",
    RunnerConformance: "Counting",
    CommunicatorConformance: "Counted",
    ExecutorConformance: "Printing",
    GrammarConformance: "Choices",
    CostModelConformance: "PerToken",
    RouterConformance: "FewestTokens",
    RoutesConformance: "CountTokens",
    ServerConformance: "Lines",
    ToolParserConformance: "CallFormat",
    ReasoningParserConformance: "FirstLineFormat",
}
"""The class of each slot, and the component that the page of the slot shows."""
PLUGINS = ROOT / "docs" / "plugins.md"
NAMES = {kind.slot: name for kind, name in SHOWN.items()}


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The examples as modules, ``shown_SLOT``, that a component can name, in any process."""
    folder = tmp_path_factory.mktemp("shown")
    sys.path.insert(0, str(folder))
    with chdir(folder):  # some write files
        for slot, name in NAMES.items():
            page = ROOT / "docs" / "interfaces" / f"{slot}.md"
            runs = [b.body for b in blocks(page) if b.runs and b.language == "python"]
            base = f"{name}Settings" if f"class {name}Settings" in "".join(runs) else "_Options"
            (folder / f"shown_{slot}.py").write_text("\n\n".join([*runs, _SETTINGS % base]))
            import_module(f"shown_{slot}")
        (of_own_slot,) = (b for b in blocks(PLUGINS) if b.file)
        write(of_own_slot, folder)
    yield
    sys.path.remove(str(folder))
    for name in ("by_weight", *(f"shown_{slot}" for slot in NAMES)):
        sys.modules.pop(name, None)


_SETTINGS = """
from typing import Literal
from paged_core.plugins.component import ComponentSettings as _Options

class ShownSettings(%s):
    name: Literal["shown"] = "shown"
"""


class _Shown(ComponentConformance):
    """The component that the page of its slot shows."""

    component: ClassVar[str] = "shown"

    def make_registry(self) -> Registry:
        module = f"shown_{self.slot}"
        options = sys.modules[module].ShownSettings
        factory = f"{module}:{NAMES[self.slot]}"
        version = Registry.discover().slots[self.slot].version
        return registry_with(
            Component(self.slot, options, factory, summary="as shown", interface_version=version)
        )


_SET: dict[type[ComponentConformance], dict[str, object]] = {
    AttentionConformance: {"dtypes": ("float32",)},
    CommunicatorConformance: {"timeout": 1.0, "num_kept": 1},
    ServerConformance: {"component": {"name": "shown", "port": 0}},
    ToolParserConformance: {
        "written": {'CALL f {"a": 1}': [("f", {"a": 1})]},
        "broken": ("CALL f", "CALL other {}"),
    },
    ReasoningParserConformance: {"written": {("", "why\nso"): ("why", "so")}},
}
for _kind, _name in SHOWN.items():
    _own = {"__module__": __name__, **_SET.get(_kind, {})}
    globals()[f"Test{_name}"] = type(f"Test{_name}", (_Shown, _kind), _own)


class TestByWeight(QueueOrderConformance):
    """The order that asks a component of a slot of its own package."""

    component = "by_weight"

    def make_registry(self) -> Registry:
        return registry_with(import_module("by_weight"))


@pytest.mark.parametrize(("paid", "first"), [(4.0, "paid"), (0.1, "free")])
def test_the_slot_of_ones_own_decides_what_is_served_first(paid: float, first: str) -> None:
    engine = build_memory_engine(
        registry_with(import_module("by_weight")),
        queue_order="by_weight",
        tenant_weights={"name": "two_classes", "paid": paid},
        scheduler={"name": "token_budget", "max_num_seqs": 1},
    )
    asked = [replace(simple_request(each, 4, 2), tenant=each) for each in ("free", "paid")]
    groups = [engine.add(replace(each, arrival=1.0)) for each in asked]
    engine.step()
    assert [group.id for group in groups if group.status is Status.RUNNING] == [first]
