"""``paged-core new-plugin``: a package with one component, its tests and its README."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path
from shutil import rmtree
from string import Template
from textwrap import dedent, indent
from typing import Annotated

import typer

from paged_core import __version__
from paged_core.cli.options import SettingsArgs
from paged_core.errors import PluginError, SettingsError, did_you_mean
from paged_core.plugins.registry import Registry
from paged_plugins.files import read_file
from paged_plugins.written_files import write_text

SUMMARIES = {
    "block_allocator": "keeps a free list, and reuses the block that was freed last, or first",
    "evictor": "evicts the least recently used block, but popular ones last",
    "queue_order": "admits short prompts first; waiting makes up for length",
    "scheduler": "computes prompts in chunks beside decoding, and preempts when blocks run out",
    "victim": "preempts the newest request, but none too often",
    "preemption": "swaps victims with many computed tokens, and recomputes the others",
    "attention": "gathers the blocks of one sequence after another, and attends to them",
    "runner": "serves models of transformers, with logits that are capped",
    "executor": "runs the model in this process, at a lower speed",
    "observers": "counts steps, tokens and requests, and writes the sums at the end",
    "cost_model": "predicts the time of a step from the tokens that it computes and reads",
    "router": "keeps sessions on their replica, unless that is too busy",
    "tool_parser": "reads an answer that is a call: a word, the name of a function, JSON",
}
"""Slots with a template, and what the component that it makes does."""

_GENERATE = 'paged-core generate "What is a block table?" --config engine.yaml'
USAGES = {
    "cost_model": "paged-core simulate chat --config engine.yaml",
    "router": "paged-core simulate chat --replicas 4 --config engine.yaml",
    "tool_parser": "paged-core serve --config engine.yaml",
}
"""Commands that use a component, where that is not an engine that generates."""

LAYOUT = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "engine.yaml": "engine.yaml",
    "src/${package}/__init__.py": "__init__.py",
    "src/${package}/py.typed": "py.typed",
    "src/${package}/plugin.py": "plugin.py",
    "src/${package}/${component}.py": "component-${slot}.py",
    "tests/test_${component}.py": "test-${slot}.py",
}
"""Files of the package, and their templates."""


def command(
    given: SettingsArgs,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What to call the package, such as my-order.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where the package's folder is made.")
    ] = Path(),
    slot: Annotated[
        str, typer.Option("--slot", metavar="SLOT", help=f"One of {', '.join(SUMMARIES)}.")
    ] = "queue_order",
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="FOLDER",
            help="Add the component NAME to the package in this folder, instead of a new one.",
        ),
    ] = None,
) -> None:
    """Write a package with one component, ready to be installed, tested and changed."""
    slot = slot.replace("-", "_")
    words = _words(name, slot, given.registry, is_package=into is None)
    component = words["component"]
    if into is None:
        folder = out / name
        _write(folder, words)
        typer.echo(
            f"wrote {folder}: {slot} {component!r}. Go there, and install, test and use it:\n"
            '  pip install --editable ".[testing]"\n'
            "  pytest\n"
            f"  {words['usage']}"
        )
        return
    if out != Path():
        raise SettingsError("--into and --out exclude each other; choose one")
    package = Package.of(into)
    words |= {"package": package.name, "module": package.inside(component)}
    modules = [_text(f"{kind}-{slot}.py", words) for kind in ("component", "test")]
    _refuse_clash(name, *modules)
    done = package.add(component, f"{words['name']}Settings", _text("record.py", words), *modules)
    lines = "".join(f"  {line}\n" for line in done)
    typer.echo(
        f"added {slot} {component!r} to {into}:\n{lines}"
        f"Test it with pytest; in settings, `{words['setting']}` names it."
    )


def _words(name: str, slot: str, registry: Registry, *, is_package: bool) -> dict[str, str]:
    """Return the values of the placeholders in the templates.

    Args:
        is_package: whether ``name`` is also that of a new package.

    Raises:
        PluginError: the name or the slot cannot be used; the message says why.
    """
    if slot not in SUMMARIES:
        known = did_you_mean(slot, SUMMARIES)
        if slot in registry.slots:
            known = f"; docs/plugins.md says what a component needs{known}"
        raise PluginError(f"there is no template for slot {slot!r}{known}")
    if slot not in registry.slots:
        raise registry.error(f"no plugin declares the slot {slot!r}")
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise PluginError(
            f"{name!r} cannot be the name of a {'package' if is_package else 'component'}: use "
            f"small letters, digits and single dashes, a letter first{_example(name)}"
        )
    package = name.replace("-", "_")
    if taken := _taken(package, slot, registry, is_package=is_package):
        what = "package" if is_package else "component"
        raise PluginError(f"{name!r} cannot be the name of the {what}: {taken}; choose another")
    noun = registry.slots[slot].noun.replace("_", " ")
    setting = f"{slot}: {package}"
    return {
        "distribution": package.replace("_", "-"),
        "package": package,
        "plugin": package,
        "component": package,
        "module": f"{package}.{package}",
        "name": "".join(part.capitalize() for part in package.split("_")),
        "slot": slot,
        "noun": noun,
        "article": "An" if noun[0] in "aeiou" else "A",
        "setting": f"{slot}: [{package}]" if registry.slots[slot].many else setting,
        "summary": SUMMARIES[slot],
        "usage": USAGES.get(slot, _GENERATE),
        "interface_version": str(registry.slots[slot].version),
        "core_version": ".".join(__version__.split(".")[:2]),
    }


def _example(name: str) -> str:
    found = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower())
    while found and found[0][0].isdigit():
        del found[0]
    return f", such as {'-'.join(found)!r}" if found else ""


def _taken(name: str, slot: str, registry: Registry, *, is_package: bool) -> str | None:
    """Say what has the name already; ``None``: nothing has."""
    if iskeyword(name) or issoftkeyword(name):
        return "it is a keyword of Python"
    if name == "auto":
        return "in settings it lets the engine choose"
    if name == "conftest":
        return "pytest looks for its fixtures in modules of that name"
    if name in registry.of(slot):
        return f"{slot} {name!r} exists"
    if not is_package:
        return None
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
    words = {**words, "record": indent(_text("record.py", words), "    ").rstrip("\n")}
    texts = {
        Template(path).substitute(words): _text(Template(source).substitute(words), words)
        for path, source in LAYOUT.items()
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


_HOOK = "paged_core_components"


@dataclass(frozen=True, slots=True)
class Package:
    """The module with the hooks of a plugin, and where what it names belongs."""

    folder: Path
    hooks: Path
    """The file of the module."""
    module: str
    """Its name, as the entry point has it."""

    @classmethod
    def of(cls, folder: Path) -> Package:
        """Find it in a folder with a ``pyproject.toml``.

        Raises:
            PluginError: it is no package of one plugin; the message says what is missing.
        """
        path = folder / "pyproject.toml"
        try:
            named = tomllib.loads(path.read_text("utf-8"))["project"]["entry-points"]["paged_core"]
            modules = [str(value).partition(":")[0] for value in named.values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"{error} is missing"
            raise PluginError(
                f"{folder} is no package of a plugin: {path} has no entry point of the group "
                f"paged_core ({reason}); name the folder that `paged-core new-plugin` made"
            ) from None
        if len(modules) != 1:
            raise PluginError(f"{path} names {len(modules)} plugins, and can be added to with one")
        relative = Path(*modules[0].split("."))
        for root in (folder / "src", folder):
            for file in (root / relative.with_suffix(".py"), root / relative / "__init__.py"):
                if file.is_file():
                    return cls(folder, file, modules[0])
        raise PluginError(f"{path} names the module {modules[0]!r}, which is not in {folder}")

    @property
    def name(self) -> str:
        """The package that the module is in, or is; empty: it is in none."""
        if self.hooks.name == "__init__.py":
            return self.module
        return self.module.rpartition(".")[0]

    def inside(self, component: str) -> str:
        """Return the name of a module beside that with the hooks."""
        return f"{self.name}.{component}" if self.name else component

    def add(self, component: str, options: str, record: str, module: str, test: str) -> list[str]:
        """Write a component and its test, and register it; return what was done, a line each.

        Args:
            options: the name of the class of its options.
            record: the source of what the hook is to yield.
            module, test: the texts of the new files.

        Raises:
            PluginError: the hook cannot be changed; nothing was written.
            FileExistsError: a file is there already; nothing was written.
        """
        path = self.hooks.parent / f"{component}.py"
        files = {path: module, self.folder / "tests" / f"test_{component}.py": test}
        source = read_file(self.hooks)
        changed = _registered(
            source, self.hooks, self.name, f"from {self.inside(component)} import {options}", record
        )
        written: list[Path] = []
        try:
            for path, text in files.items():
                path.parent.mkdir(exist_ok=True)
                try:
                    with path.open("x", encoding="utf-8", newline="\n") as file:
                        written.append(path)
                        file.write(text)
                except FileExistsError:
                    raise FileExistsError(
                        f"{path} exists already, and is left alone; choose another name"
                    ) from None
            write_text(self.hooks, changed)
        except BaseException:
            for path in written:
                path.unlink()
            raise
        return [*(f"wrote {path}" for path in written), f"changed {self.hooks}: it registers it"]


def _registered(source: str, path: Path, package: str, imported: str, record: str) -> str:
    """Return the source of a plugin whose hook yields one more component."""

    def refusal(why: str) -> PluginError:
        return PluginError(
            f"{path} {why}; add `{imported}` and a Component to it by hand, see docs/plugins.md"
        )

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise refusal(f"is no Python: {error}") from None
    hook = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == _HOOK), None)
    if hook is None or not any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(hook)):
        raise refusal(f"has no function {_HOOK} that yields")
    if isinstance(hook.body[-1], ast.Return | ast.Raise) or hook.body[0].lineno == hook.lineno:
        raise refusal(f"has a {_HOOK} that cannot go on after its last line")
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if not any((name.asname or name.name) == "Component" for n in imports for name in n.names):
        raise refusal("does not import Component")
    lines = source.split("\n")  # as `ast` counts them
    end = "\r" if lines[0].endswith("\r") else ""
    body = indent(dedent(record), " " * hook.body[0].col_offset).rstrip("\n").split("\n")
    lines[hook.end_lineno : hook.end_lineno] = [f"{line}{end}" for line in body]
    place, blank = _place(imports, package, imported)
    lines[place:place] = [f"{line}{end}" for line in [*blank, imported]]
    return "\n".join(lines)


def _place(
    imports: Sequence[ast.Import | ast.ImportFrom], package: str, imported: str
) -> tuple[int, list[str]]:
    """Return the line after which an import belongs, and blank lines before it."""
    module = imported.split()[1]
    own = [
        node
        for node in imports
        if isinstance(node, ast.ImportFrom)
        and package
        and f"{node.module}.".startswith(f"{package}.")
    ]
    before = [node for node in own if str(node.module) < module]
    if before:
        return before[-1].end_lineno or 0, []
    if own:
        return own[0].lineno - 1, []
    return imports[-1].end_lineno or 0, [""]
