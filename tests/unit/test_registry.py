"""Plugins: what is found, what is refused, and what is said about it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from paged_core import plugin
from paged_core.errors import PluginError
from paged_core.plugins.component import Command, Component, ComponentSettings, Profile, Slot
from paged_core.plugins.registry import Plugin, Registry
from paged_core.settings.schema import settings_class
from unit.engines import without_place

HEADER = """
from typing import Literal
from paged_core.plugins.component import Command, Component, ComponentSettings, Profile, Slot
from paged_core.plugins.hooks import hookimpl

class RoundRobinSettings(ComponentSettings):
    name: Literal["round_robin"] = "round_robin"
"""

COMPONENT = """
@hookimpl
def paged_core_components():
    yield Component("scheduler", RoundRobinSettings, "nowhere:RoundRobin")
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a package with one plugin, as pip would lay it out."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def make(plugin: str, code: str, distribution: str | None = None) -> None:
        distribution = distribution or f"dist-{plugin}"
        module = f"fake_{distribution.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(HEADER + code)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text(f"[paged_core]\n{plugin} = {module}\n")
        made.append(module)

    yield make
    for module in made:
        sys.modules.pop(module, None)


SLOT = """
@hookimpl
def paged_core_slots():
    yield Slot("turns", "x:Turns", {})
"""


def found(name: str, **options: list[str]) -> Plugin:
    (plugin,) = [p for p in Registry.discover(**options).plugins if p.name == name]
    return plugin


def test_a_plugin_is_found_with_what_it_brings(install: Install) -> None:
    install("robin", COMPONENT)
    registry = Registry.discover()
    assert registry.get("scheduler", "round_robin").factory == "nowhere:RoundRobin"
    plugin = found("robin")
    assert (plugin.distribution, plugin.version, plugin.status) == ("dist-robin", "1.2", "active")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "@hookimpl\ndef paged_core_component(): ...",
            "no hook is called 'paged_core_component'; did you mean 'paged_core_components'?",
        ),
        (
            "def paged_core_components(): ...",
            "it implements no hook; mark paged_core_components and the like with @hookimpl",
        ),
        (
            "@hookimpl\ndef paged_core_components():\n    raise OSError('disk on fire')",
            "OSError: disk on fire",
        ),
        (
            "@hookimpl\ndef paged_core_components():\n    yield 'round_robin'",
            "paged_core_components yields 'round_robin', which is not a Component",
        ),
        (
            COMPONENT.replace("scheduler", "schedular"),
            "'round_robin' is for a slot that nothing declares, 'schedular';"
            " did you mean 'scheduler'?",
        ),
        (
            COMPONENT.replace(")\n", ", interface_version=2)\n"),
            "built for interface 2, this is 1",
        ),
        (
            COMPONENT.replace('"scheduler"', '"turns"') + SLOT.format('"t_none"'),
            "slot 'turns' has no component 't_none', its default; correct it, or use "
            "--block-plugin bad; there are: round_robin",
        ),
        (
            COMPONENT.replace('"scheduler"', '"turns"')
            + SLOT.format('("round_robin", "round_robi"), many=True'),
            "slot 'turns' has no component 'round_robi', its default; correct it, or use "
            "--block-plugin bad; did you mean 'round_robin'?",
        ),
        (
            COMPONENT.replace("nowhere:RoundRobin", "nowhere.RoundRobin"),
            "scheduler.round_robin: 'nowhere.RoundRobin' is not 'package.module:name'",
        ),
        (
            COMPONENT.replace("RoundRobinSettings,", "ComponentSettings,"),
            'ComponentSettings does not pin its name; write `name: Literal["my_name"] = "my_name"`',
        ),
    ],
)
def test_a_broken_plugin_says_why_and_the_others_load(
    install: Install, code: str, reason: str
) -> None:
    install("bad", code)
    plugin = found("bad")
    assert (plugin.status, without_place(plugin.reason)) == ("broken", reason)
    registry = Registry.discover()
    assert "round_robin" not in registry.of("scheduler")
    assert "scheduler" in registry.slots
    assert settings_class(registry)().scheduler.name
    with pytest.raises(PluginError, match=r"note: plugin 'bad' \(dist-bad 1\.2\) is broken"):
        registry.get("scheduler", "nothing_like_it")


def test_a_blocked_plugin_is_not_imported(install: Install) -> None:
    install("loud", "raise SystemExit('imported')")
    plugin = found("loud", block=["loud"])
    assert (plugin.status, plugin.reason) == ("blocked", None)
    assert "fake_dist_loud" not in sys.modules
    with pytest.raises(PluginError, match=r"cannot block 'lowd'.* did you mean 'loud'\?"):
        Registry.discover(block=["lowd"])


def test_two_providers_of_a_name_are_listed_and_refused(install: Install) -> None:
    install("one", COMPONENT)
    install("two", COMPONENT)
    registry = Registry.discover()
    message = (
        r"scheduler 'round_robin' comes from both plugin 'one' \(dist-one 1\.2\) and plugin 'two' "
        r"\(dist-two 1\.2\); use --block-plugin one or --block-plugin two"
    )
    for use in (
        lambda: registry.get("scheduler", "round_robin"),
        lambda: settings_class(registry),
    ):
        with pytest.raises(PluginError, match=message):
            use()
    assert not Registry.discover(block=["two"]).conflicts


PROFILE = """
@hookimpl
def paged_core_profiles():
    yield Profile("fast", "scheduler: fcfs")
"""


def test_a_profile_of_two_plugins_is_an_error_only_if_it_is_chosen(
    install: Install,
) -> None:
    install("one", PROFILE)
    install("two", PROFILE)
    settings = settings_class(Registry.discover())
    assert settings().profile is None
    with pytest.raises(PluginError, match="profile 'fast' comes from both"):
        settings(profile="fast")


def test_without_the_slots_of_an_engine_nothing_can_be_set() -> None:
    with pytest.raises(PluginError, match="no plugin declares the slot 'block_allocator'") as error:
        settings_class(Registry.discover(block=["core"]))
    assert "plugin 'core'" in str(error.value)
    assert "is blocked" in str(error.value)


def test_two_plugins_of_one_name(install: Install) -> None:
    install("same", COMPONENT, "dist-a")
    install("same", COMPONENT, "dist-b")
    both = [p for p in Registry.discover().plugins if p.name == "same"]
    assert sorted(p.status for p in both) == ["active", "broken"]
    (broken,) = [p for p in both if p.status == "broken"]
    assert broken.reason is not None
    assert broken.reason.startswith("its name is taken by plugin 'same' (dist-")


def test_a_slot_goes_with_its_plugin(install: Install) -> None:
    slot = '@hookimpl\ndef paged_core_slots():\n    yield Slot("runners", "x:Runway")\n'
    install("runways", slot)
    install("robin", COMPONENT.replace('"scheduler"', '"runners"'))
    assert Registry.discover().get("runners", "round_robin")
    without = Registry.discover(block=["runways"])
    assert "runners" not in without.slots
    assert [p.reason for p in without.plugins if p.name == "robin"] == [
        "'round_robin' is for a slot that nothing declares, 'runners'; did you mean 'runner'?"
    ]


class FifoSettings(ComponentSettings):
    name: Literal["fifo2"] = "fifo2"


class LifoSettings(ComponentSettings):
    name: Literal["lifo2"] = "lifo2"


@pytest.fixture
def core() -> Registry:
    return Registry(()).extended(plugin, plugin="core")


def test_extended_takes_records_and_modules(core: Registry) -> None:
    registry = core.extended(
        Component("queue_order", FifoSettings, "m:Fifo"),
        Profile("mine", "seed: 3"),
        Command("mine", "m:app", "does it"),
        Slot("router", "m:Router"),
    )
    assert list(registry.of("queue_order")) == ["fifo2"]
    assert set(registry.profiles) == set(registry.commands) - set(core.commands) == {"mine"}
    assert not core.of("queue_order")
    with pytest.raises(PluginError, match="nothing declares, 'nowhere'"):
        core.extended(Component("nowhere", FifoSettings, "m:Fifo"))


def test_candidates_come_by_rank(core: Registry) -> None:
    registry = core.extended(
        Component("attention", FifoSettings, "m:F", rank=1),
        Component("attention", LifoSettings, "m:L", rank=5),
    )
    assert [c.name for c in registry.candidates("attention")] == ["lifo2", "fifo2"]


def number() -> int:
    return 7


def blank() -> str:
    return " "


def leaves() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("factory", "check", "why"),
    [
        ("json:dumps", None, ""),
        ("json:dumps", "platform:python_version", "3."),
        ("json:dumps", "json:loads", "its check failed: TypeError"),
        (
            "json:dumps",
            f"{__name__}:number",
            ":number' returned 7, and may return a reason or None",
        ),
        ("json:dumps", f"{__name__}:blank", "returned ' ', and may return a reason"),
        ("json:dumps", f"{__name__}:leaves", "its check failed: SystemExit: 3 (at "),
        ("no_such_package:X", None, "No module named 'no_such_package'"),
        ("json:Nothing", None, "has no attribute 'Nothing'"),
        ("module_that_exits:Fifo", None, "SystemExit: 3 (at "),
    ],
)
def test_a_component_says_why_it_cannot_serve(
    factory: str, check: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    reason = Component("attention", FifoSettings, factory, check=check).unavailable_reason()
    assert why in (reason or "")
    assert bool(reason) == bool(why)


def test_a_check_is_given_the_options_that_are_asked_about() -> None:
    made = Component("attention", FifoSettings, "json:dumps", check="builtins:repr")
    assert made.unavailable_reason(LifoSettings()) == repr(LifoSettings())


def test_first_party_plugins_are_sound() -> None:
    registry = Registry.discover()
    assert {p.name: p.reason for p in registry.plugins if p.status != "active"} == {}
    assert not registry.conflicts
    for slot in registry.slots.values():
        names = slot.default if isinstance(slot.default, tuple) else (slot.default,)
        for name in names:
            assert (name == "auto" and slot.auto) or name is None or name in registry.of(slot.key)
