"""Names of 0.1, which plugins written against it import, call and define."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Literal

import pytest

from paged_core import former_names
from paged_core.cache.kv_cache import PrefixHit
from paged_core.checked.allocator import CheckedAllocator
from paged_core.engine import contexts
from paged_core.engine.wiring import build_engine
from paged_core.errors import PluginError
from paged_core.former_names import MOVED, RENAMED
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.allocator import BlockAllocator
from paged_core.interfaces.evictor import BlockInfo
from paged_core.plugins.component import Component
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings.schema import settings_class
from paged_policies.allocators.hash_cached import HashCachedAllocator, HashCachedSettings
from paged_testing import registry_with
from paged_testing.allocator import PlainEvictor
from unit.block_tables import make_cache, make_group

PUBLIC = {
    "paged_core.block_key": ["BlockKey"],
    "paged_core.cli.options": ["Given"],
    "paged_core.component": ["Component", "ComponentSettings", "Profile", "Slot"],
    "paged_core.engine": ["Engine"],
    "paged_core.engine_driver": ["EngineDriver"],
    "paged_core.hookspecs": ["hookimpl"],
    "paged_core.interfaces.model_size": ["ModelSize"],
    "paged_core.kv_cache": ["KVCache", "PrefixHit"],
    "paged_core.preemptor": ["Preemptor"],
    "paged_core.registry": ["Registry"],
    "paged_core.settings": ["EngineSettings", "load_settings", "settings_class"],
    "paged_core.testing": ["SchedulerConformance"],
    "paged_core.waiting_queue": ["WaitingQueue"],
}
"""What the author of a plugin imports."""


@pytest.mark.parametrize("former", sorted(MOVED))
def test_a_former_name_is_the_module_that_has_moved(former: str) -> None:
    new = import_module(f"paged_core.{MOVED[former]}")
    sys.modules.pop(f"paged_core.{former}", None)
    with pytest.warns(DeprecationWarning, match=rf"{former} is now paged_core\.{MOVED[former]}"):
        found = import_module(f"paged_core.{former}")
    assert found is new
    assert new.__spec__ is not None
    assert new.__spec__.name == f"paged_core.{MOVED[former]}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_what_plugins_import_is_there(module: str) -> None:
    for name in PUBLIC[module]:
        assert getattr(import_module(module), name)


@pytest.mark.parametrize("module", sorted(RENAMED))
def test_a_class_has_its_former_name_where_it_was(module: str) -> None:
    home = import_module(f"paged_core.{module}")
    for former, (where, new) in RENAMED[module].items():
        with pytest.warns(DeprecationWarning, match=rf"{former} is now paged_core\.{where}\.{new}"):
            found = getattr(home, former)
        assert found is getattr(contexts, new)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        home.no_such_name  # noqa: B018


def test_fields_have_their_former_names() -> None:
    assert PrefixHit([BlockId(1)], num_committed=1).num_settled == 1
    assert BlockInfo(1, 2, 3, cache_order=4).published == 4
    cache = make_cache(block_size=4)
    cache.admit(make_group(8).live[0], 8)
    found = [
        len(cache.lookup(make_group(9).live[0], 8, settled=only).blocks) for only in (False, True)
    ]
    assert found == [2, 0], "this step is to fill them"


_FORMER_METHODS = {"cache": "publish", "uncache": "retract"}
_MEMBERS = {
    _FORMER_METHODS.get(name, name): vars(HashCachedAllocator)[name]
    for name in vars(HashCachedAllocator)
    if name not in {"__dict__", "__weakref__"}
}
FormerAllocator = type("FormerAllocator", (BlockAllocator,), _MEMBERS)
"""Has the methods of the prefix cache by their names in 0.1."""


class FormerSettings(HashCachedSettings):
    name: Literal["former"] = "former"  # type: ignore[assignment]


def test_an_allocator_may_publish_and_retract() -> None:
    registry = registry_with(
        Component("block_allocator", FormerSettings, f"{__name__}:FormerAllocator")
    )
    settings = settings_class(registry)(
        executor="memory", block_allocator="former", num_blocks=8, block_size=2
    )
    engine = build_engine(settings, registry)
    cached = []
    for name in ("A", "B"):
        sampling = SamplingParams(max_tokens=1)
        group = engine.add(Request(id=name, prompt=(1, 2, 3, 4, 5), sampling=sampling))
        while engine.has_unfinished:
            engine.step()
        cached.append(group.num_cached)
    engine.close()
    assert cached == [0, 4]


def test_an_allocator_with_former_names_may_be_wrapped_twice() -> None:
    context = contexts.AllocatorContext(
        num_blocks=8, block_size=2, max_model_len=8, evictor=PlainEvictor()
    )
    made = FormerAllocator(HashCachedSettings(), context)
    for _ in range(2):
        assert CheckedAllocator(made, 8).caches_prefixes


def test_an_allocator_with_both_names_is_refused() -> None:
    class Both(HashCachedAllocator):
        def publish(self, block: BlockId, key: BlockKey, /) -> BlockId:
            return self.cache(block, key)

    context = contexts.AllocatorContext(
        num_blocks=8, block_size=2, max_model_len=8, evictor=PlainEvictor()
    )
    with pytest.raises(PluginError, match=r"Both: its publish\(\) is not called; write cache\(\)"):
        CheckedAllocator(Both(HashCachedSettings(), context), 8)


@pytest.mark.parametrize(
    ("module", "former"), [("routing.router", "RouterParts"), ("lab.cost_model", "CostModelParts")]
)
def test_contexts_of_the_lab_have_their_former_names(module: str, former: str) -> None:
    home = import_module(f"paged_plugins.{module}")
    with pytest.warns(DeprecationWarning, match=f"{former} is now"):
        assert getattr(home, former) is getattr(home, former.replace("Parts", "Context"))
    with pytest.raises(AttributeError, match="has no attribute 'Parts'"):
        home.Parts  # noqa: B018


@pytest.mark.parametrize(
    ("former", "name", "home"),
    [
        ("router", "Router", "router"),
        ("router", "Load", "load_book"),
        ("routers", "SessionSettings", "routers"),
        ("routers", "PrefixAffinitySettings", "prefix_affinity"),
        ("testing", "RouterConformance", "testing"),
    ],
)
def test_routers_have_their_former_names_in_the_lab(former: str, name: str, home: str) -> None:
    """So that a plugin that was built for them is listed with the version of its interface."""
    module = import_module(f"paged_plugins.lab.{former}")
    new = import_module(f"paged_plugins.routing.{home}")
    with pytest.warns(DeprecationWarning, match=rf"{former}\.{name} is now in {new.__name__}"):
        assert getattr(module, name) is getattr(new, name)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


def test_other_names_are_unknown_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_module("paged_core.no_such_module")


def test_it_is_installed_once() -> None:
    before = list(sys.meta_path)
    former_names.install()
    assert sys.meta_path == before


def test_it_costs_no_import() -> None:
    plain = [sys.executable, "-S", "-E", "-I", "-c"]
    path = f"import sys; sys.path[:] = {sys.path!r}; before = set(sys.modules); "
    code = "import paged_core; found = set(sys.modules) - before; "
    code += "print(sorted({'typing', 'importlib.abc'} & found))"
    done = subprocess.run([*plain, path + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
