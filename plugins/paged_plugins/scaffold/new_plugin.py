"""``paged-core new-plugin``: a package with one component, its tests and its README."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path
from shutil import rmtree
from string import Template
from typing import Annotated

import typer

from paged_core import __version__
from paged_core.cli.options import SettingsArgs
from paged_core.errors import PluginError, did_you_mean
from paged_core.plugins.registry import Registry

SUMMARIES = {
    "block_allocator": "keeps a free list, and reuses the block that was freed last, or first",
    "evictor": "evicts the least recently used block, but popular ones last",
    "queue_order": "admits short prompts first; waiting makes up for length",
    "length_predictor": "expects what earlier answers to prompts of a like length had",
    "admission": "holds back or refuses what can wait, as much waits or little",
    "scheduler": "computes prompts in chunks beside decoding, and preempts when blocks run out",
    "victim": "preempts the newest request, but none too often",
    "preemption": "swaps victims with many computed tokens, and recomputes the others",
    "attention": "gathers the blocks of one sequence after another, and attends to them",
    "runner": "serves models of transformers, with logits that are capped",
    "executor": "runs the model in this process, at a lower speed",
    "communicator": "warns of sums that are slow",
    "grammar": "holds an output to a choice of texts, and refuses other forms",
    "observers": "counts steps, tokens and requests, and writes the sums at the end",
    "cost_model": "predicts the time of a step from the tokens that it computes and reads",
    "router": "keeps sessions on their replica, unless that is too busy",
    "replicas": "sends requests to the least loaded of several engines",
    "server": "completes lines over TCP",
    "tool_parser": "reads an answer that is a call: a word, the name of a function, JSON",
    "reasoning_parser": "takes what comes before a mark for reasoning",
    "routes": "says whether there is room for a request",
}
"""Slots with a template, and what the component that it makes does."""
OWN_SLOT = "start_rule"
"""A template that brings this slot itself, with a scheduler that asks a component of it."""
TEMPLATES = {**SUMMARIES, OWN_SLOT: "asks a component of a slot of its own which request may start"}

_GENERATE = 'paged-core generate "What is a block table?" --config engine.yaml'
USAGES = {
    "cost_model": "paged-core simulate chat --config engine.yaml",
    "router": "paged-core simulate chat --replicas 4 --config engine.yaml",
    **dict.fromkeys(
        ("grammar", "replicas", "server", "tool_parser", "reasoning_parser", "routes"),
        "paged-core serve --config engine.yaml",
    ),
}
"""Commands that use a component, where that is not an engine that generates."""
BESIDE = {
    "length_predictor": "queue_order: sjf",
    "communicator": "executor: {name: workers, ranks: 2}",
    OWN_SLOT: "start_rule: {name: tenant_limit, limit: 8}",
}
"""Further settings, without which a component is not asked."""

LAYOUT = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "engine.yaml": "engine.yaml",
    "src/${package}/__init__.py": "__init__.py",
    "src/${package}/py.typed": "py.typed",
    "src/${package}/plugin.py": "plugin${own}.py",
    "src/${package}/${component}.py": "component-${template}.py",
    "src/${package}/settings.py": "settings-${template}.py",
    "tests/test_${component}.py": "test-${template}.py",
}
"""Files of the package, and their templates."""
APART = ("replicas", "routes", "server")
"""Slots of components that import much: only these have a module of their own for options."""


def command(
    given: SettingsArgs,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What to call the package, such as my-order.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where the package's folder is made.")
    ] = Path(),
    slot: Annotated[
        str, typer.Option("--slot", metavar="SLOT", help=f"One of {', '.join(TEMPLATES)}.")
    ] = "queue_order",
) -> None:
    """Write a package with one component, ready to be installed, tested and changed."""
    slot = slot.replace("-", "_")
    words = _words(name, slot, given.registry)
    folder = out / name
    _write(folder, words)
    typer.echo(
        f"wrote {folder}: {words['slot']} {words['component']!r}. Go there, and install, test and "
        "use it:\n"
        '  pip install --editable ".[testing]"\n'
        "  pytest\n"
        f"  {words['usage']}"
    )


def _words(name: str, slot: str, registry: Registry) -> dict[str, str]:
    """Return the values of the placeholders in the templates.

    Raises:
        PluginError: the name or the slot cannot be used; the message says why.
    """
    template = slot
    if slot == OWN_SLOT:
        if slot in registry.slots:
            raise PluginError(f"a plugin brings the slot {slot!r} already; see `plugins {slot}`")
        slot = "scheduler"
    if slot not in SUMMARIES:
        known = did_you_mean(slot, TEMPLATES)
        if slot in registry.slots:
            known = f"; docs/plugins.md says what a component needs{known}"
        raise PluginError(f"there is no template for slot {slot!r}{known}")
    if slot not in registry.slots:
        raise registry.error(f"no plugin declares the slot {slot!r}")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise PluginError(
            f"{name!r} cannot be the name of a package: use small letters, digits and single "
            f"dashes, a letter first{_example(name)}"
        )
    package = name.replace("-", "_")
    if taken := _taken(package, slot, registry):
        raise PluginError(f"{name!r} cannot be the name of the package: {taken}; choose another")
    declared = registry.slots[slot]
    noun = "client of replicas" if slot == "replicas" else declared.noun.replace("_", " ")
    others = declared.default if isinstance(declared.default, tuple) else ()
    setting = (
        f"{slot}: [{', '.join((*others, package))}]" if declared.many else f"{slot}: {package}"
    )
    return {
        "distribution": package.replace("_", "-"),
        "package": package,
        "plugin": package,
        "component": package,
        "module": f"{package}.{package}",
        "options": f"{package}.{'settings' if template in APART else package}",
        "files": ", ".join(
            f"`src/{package}/{each}.py`"
            for each in (package, "settings")
            if each == package or template in APART
        ),
        "name": "".join(part.capitalize() for part in package.split("_")),
        "slot": slot,
        "template": template,
        "own": f"-{OWN_SLOT}" if template == OWN_SLOT else "",
        "noun": noun,
        "article": "An" if noun[0] in "aeiou" else "A",
        "setting": "\n".join(filter(None, (setting, BESIDE.get(template)))),
        "summary": TEMPLATES[template],
        "usage": USAGES.get(slot, _GENERATE),
        "interface_version": str(declared.version),
        "core_version": ".".join(__version__.split(".")[:2]),
    }


def _example(name: str) -> str:
    found = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower())
    while found and found[0][0].isdigit():
        del found[0]
    return f", such as {'-'.join(found)!r}" if found else ""


def _taken(name: str, slot: str, registry: Registry) -> str | None:
    """Say what has the name already; ``None``: nothing has."""
    if iskeyword(name) or issoftkeyword(name):
        return "it is a keyword of Python"
    if name == "auto":
        return "in settings it lets the engine choose"
    if name == "conftest":
        return "pytest looks for its fixtures in modules of that name"
    if name in registry.of(slot):
        return f"{slot} {name!r} exists"
    if name == "plugin":
        return "it is that of the module with the hook"
    if name in sys.stdlib_module_names:
        return "it is a module of the standard library"
    for plugin in registry.plugins:
        if plugin.name == name:
            return f"{plugin} is installed"
    if find_spec(name) is not None:
        return f"a package {name!r} is installed"
    return None


def _text(name: str, words: Mapping[str, str]) -> str:
    """Return what a template becomes."""
    template = files("paged_plugins.scaffold") / "templates" / "plugin" / f"{name}.tmpl"
    return Template(template.read_text("utf-8")).substitute(words)


def _refuse_clash(name: str, *modules: str) -> None:
    """Raise PluginError if a module would define a class that it also imports."""
    for module in modules:
        body = ast.parse(module).body
        defined = {node.name for node in body if isinstance(node, ast.ClassDef)}
        imports = [node for node in body if isinstance(node, ast.ImportFrom)]
        for each in (each.name for node in imports for each in node.names):
            if each in defined:
                raise PluginError(
                    f"{name!r} cannot be the name of the component: it uses another class "
                    f"{each!r}; choose another"
                )


def _write(folder: Path, words: Mapping[str, str]) -> None:
    """Write the package; all of it, or nothing.

    Raises:
        FileExistsError: the folder exists; it is left alone.
        PluginError: the name is one that the template uses itself.
    """
    texts = {
        Template(path).substitute(words): _text(Template(source).substitute(words), words)
        for path, source in LAYOUT.items()
        if words["template"] in APART or not source.startswith("settings-")
    }
    _refuse_clash(folder.name, *(text for path, text in texts.items() if path.endswith(".py")))
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise FileExistsError(
            f"{folder} exists already, and is left alone; choose another name, or another --out"
        ) from None
    try:
        for path, text in texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")
    except BaseException:
        rmtree(folder)
        raise
