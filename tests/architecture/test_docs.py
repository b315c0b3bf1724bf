"""The documentation is correct and complete."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import paged_core
from architecture.kits import conformance_classes, first_party, kit_modules
from architecture.snippets import PAGES, ROOT, blocks, run_page
from paged_core.plugins import hooks as hookspecs
from paged_core.plugins.component import Command, Component, Profile, Slot
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_testing import POLICY_SLOTS, ComponentConformance

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
RECORDS: dict[str, type] = {
    "paged_core_components": Component,
    "paged_core_profiles": Profile,
    "paged_core_commands": Command,
    "paged_core_slots": Slot,
}
SLOTS = Registry.discover().slots
CLASSES = dict(conformance_classes())
"""The conformance class of each slot that has one."""


def named(page: Path) -> set[str]:
    """Return every name that a page sets in code type, without what follows in brackets."""
    text = page.read_text("utf-8")
    return {re.split(r"[(\s:]", found)[0] for found in re.findall(r"`([^`\n]+)`", text)}


def components_of(slot: str) -> list[Component]:
    return [component for component in first_party() if component.slot == slot]


# ---------------------------------------------------------------------- what is shown, runs


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [
        page
        for page in (README, *PAGES)
        if page != TUTORIAL and any(block.runs for block in blocks(page))
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@pytest.mark.parametrize(
    "page", (README, *PAGES), ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_everything_that_can_be_run_is(page: Path) -> None:
    left = [block.line for block in blocks(page) if not (block.runs or block.file)]
    languages = {block.line: block.language for block in blocks(page)}
    assert not [line for line in left if languages[line] in {"python", "console"}]


def test_the_api_page_has_every_public_name() -> None:
    shown = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)
    for path in shown:
        module, _, name = path.rpartition(".")
        assert hasattr(import_module(module), name), path
    names = {path.rpartition(".")[2] for path in shown}
    public = {*paged_core.__all__} - {"__version__"}
    assert public | {slot.interface.partition(":")[2] for slot in SLOTS.values()} <= names


def test_the_api_page_has_every_conformance_class_with_what_it_may_set() -> None:
    page, base = (ROOT / "docs" / "api.md").read_text("utf-8"), set(_settable(ComponentConformance))
    for module in kit_modules():
        for name, kind in vars(import_module(module)).items():
            if not name.endswith("Conformance"):
                continue
            found = re.search(rf"^::: {module}\.{name}\n    options: (.*)$", page, re.MULTILINE)
            own = set(_settable(kind)) - (set() if kind is ComponentConformance else base)
            own |= {"expected", "table", "budget", "max_num_seqs"} & set(dir(kind))
            assert found, f"{module}.{name}"
            assert not own - set(re.findall(r"\w+", found[1])), name


def _settable(kind: type) -> Iterator[str]:
    """Attributes that a conformance class declares for those who subclass it."""
    for each in kind.__mro__:
        for name in vars(each).get("__annotations__", {}):
            if not name.startswith("_") and name not in ("slot", "example", "pytestmark"):
                yield name


@pytest.mark.parametrize(
    "page",
    [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_lead_to_files_of_the_repository(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if not target.startswith(("http://", "https://")):
            found = (page.parent / target).resolve()
            assert found.exists(), f"{page.name} links to {target}"
            assert found.is_relative_to(ROOT)


# ---------------------------------------------------------------------- what there is, is told


def hooks(module: ModuleType) -> dict[str, inspect.Signature]:
    """Return the hooks that a module specifies."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        name: inspect.signature(function)
        for name, function in functions
        if hasattr(function, "paged_core_spec")
    }


def section(page: Path, heading: str) -> str:
    """Return the text under a heading, up to the next one of its level or above."""
    text = page.read_text("utf-8")
    found = re.search(
        rf"^(#+) {re.escape(heading)}$\n(.*?)(?=^#{{1,3}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found, f"{page.name} has no section {heading!r}"
    return found[2]


@pytest.mark.parametrize("hook", hooks(hookspecs))
def test_every_hook_is_documented_with_its_arguments_and_records(hook: str) -> None:
    text = section(ROOT / "docs" / "plugins.md", hook)
    for argument in hooks(hookspecs)[hook].parameters:
        assert f"`{argument}`" in text
    record = RECORDS[hook]
    assert f"`{record.__name__}`" in text
    for field in fields(record):
        assert f"`{field.name}`" in text, f"{record.__name__}.{field.name}"


@pytest.mark.parametrize("slot", SLOTS)
def test_every_interface_has_a_page_that_names_its_members(slot: str) -> None:
    page = ROOT / "docs" / "interfaces" / f"{slot}.md"
    path = SLOTS[slot].interface
    module = import_module(path.partition(":")[0])
    interface = getattr(module, path.partition(":")[2])
    text = page.read_text("utf-8")
    assert path in text
    told = named(page)
    own = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    for kind in own:
        if kind.__module__ != module.__name__:
            continue
        for name, member in vars(kind).items():
            public = not name.startswith("_") or (kind is interface and name == "__len__")
            if public and (callable(member) or isinstance(member, (property, bool))):
                assert name in told, f"{page.name} does not name {kind.__name__}.{name}"
        if is_dataclass(kind) and kind.__name__.endswith("Parts"):
            assert kind.__name__ in told
            for field in fields(kind):
                assert field.name in told, f"{page.name} does not name {field.name}"


@pytest.mark.parametrize("slot", SLOTS)
def test_every_component_and_its_options_are_documented(slot: str) -> None:
    page = ROOT / "docs" / "interfaces" / f"{slot}.md"
    told, listed = named(page), named(ROOT / "docs" / "index.md")
    for component in components_of(slot):
        assert component.name in told
        assert component.name in listed
        for option in component.settings.model_fields:
            assert option == "name" or option in told, f"{slot}.{component.name}.{option}"


@pytest.mark.parametrize("slot", POLICY_SLOTS)
def test_every_policy_has_a_section_that_says_what_it_is_good_for(slot: str) -> None:
    page = ROOT / "docs" / "interfaces" / f"{slot}.md"
    for component in components_of(slot):
        text = section(page, f"`{component.name}`")
        for what in ("Helps", "Hurts", "Promises", "Source"):
            assert re.search(rf"^- \*\*{what}:\*\* [\w`]", text, re.MULTILINE), (
                f"{page.name}, {component.name}: {what}"
            )
        for option in component.settings.model_fields:
            assert option == "name" or f"`{option}`" in text, f"{component.name}.{option}"


@pytest.mark.parametrize("slot", CLASSES)
def test_every_interface_names_its_hook_and_its_conformance_class(slot: str) -> None:
    page = ROOT / "docs" / "interfaces" / f"{slot}.md"
    assert section(page, "Example")
    assert {"paged_core_components", CLASSES[slot]} <= named(page)


def test_the_readme_has_a_row_of_every_slot_and_every_command() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]", README.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(SLOTS)
    assert set(Registry.discover().commands) <= named(README)


def test_every_setting_and_profile_is_documented() -> None:
    needed = {*EngineSettings.model_fields, *Registry.discover().profiles}
    assert not needed - named(ROOT / "docs" / "settings.md")


def test_every_decision_about_the_design_is_listed() -> None:
    index = (ROOT / "docs" / "adr" / "index.md").read_text("utf-8")
    for page in (ROOT / "docs" / "adr").glob("[!i]*.md"):
        assert f"]({page.name})" in index
        assert not set(re.findall(r"^## (\d{4}): ", page.read_text("utf-8"), re.MULTILINE)) - {
            *re.findall(r"\b\d{4}\b", index)
        }
