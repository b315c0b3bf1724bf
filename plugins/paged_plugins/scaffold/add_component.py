"""A component added to a package of plugins that exists: where it goes, and what is changed."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent

from paged_core.errors import PluginError
from paged_plugins.files import read_file
from paged_plugins.written_files import write_text

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
