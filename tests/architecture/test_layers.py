"""The shape of the code: which package may import which, and the size of the core."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from paged_core.plugins.registry import Registry

ROOT = Path(__file__).parents[2]
CORE = ROOT / "src" / "paged_core"
INTERFACES = sorted(
    path for path in (CORE / "interfaces").glob("*.py") if path.name != "__init__.py"
)
SCREEN = 60
PACKAGES = ("paged_core", "paged_testing", "paged_policies", "paged_backends", "paged_plugins")


def code_lines(path: Path) -> int:
    """Count lines that hold something."""
    return sum(bool(line.strip()) for line in path.read_text("utf-8").splitlines())


def core_files() -> Iterator[Path]:
    return CORE.rglob("*.py")


def imported_names(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, and with them whatever else it imports by name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def repository_files() -> list[Path]:
    """Return what is, or would be, committed; without git, what lies in the folders of code."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
        return [path for path in found if path.is_file()]
    folders = ("src", "policies", "backends", "plugins", "tests", "docs", "examples", "tools")
    return [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]


def test_no_modules_of_the_core_import_each_other() -> None:
    """Imports for type checking only are included: import-linter leaves those out."""
    names = {".".join(path.relative_to(CORE.parent).with_suffix("").parts) for path in core_files()}
    imports = {
        name: set(imported_names(CORE.parent / f"{name.replace('.', '/')}.py")) & names
        for name in names
    }
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("path", INTERFACES, ids=lambda path: path.stem)
def test_every_class_of_an_interface_fits_one_screen(path: Path) -> None:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < SCREEN, f"{node.name} has grown"


def test_every_slot_has_an_interface_of_its_own_file() -> None:
    slots = Registry.discover().slots
    modules = {key: slot.interface.partition(":")[0] for key, slot in slots.items()}
    assert len(set(modules.values())) == len(modules)
    core = {module for module in modules.values() if module.startswith("paged_core.")}
    assert {f"paged_core.interfaces.{path.stem}" for path in INTERFACES} >= core
    for key, module in modules.items():
        assert module in core or module.endswith(f".{key}"), f"{key} is declared in {module}"


ENGINE_LINES = 3300
"""Lines of ``engine/`` and ``cache/`` that are not blank, at most: an afternoon."""


def test_the_engine_can_be_read_in_an_afternoon() -> None:
    files = [path for name in ("engine", "cache") for path in (CORE / name).rglob("*.py")]
    assert sum(map(code_lines, files)) <= ENGINE_LINES


def test_nothing_refers_to_a_folder_outside() -> None:
    outside = re.compile(r"\.\./" + r"shared\b")
    for path in repository_files():
        if path.suffix in {".safetensors", ".png"}:
            continue
        assert not outside.search(path.read_text("utf-8", errors="replace")), path


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    (folder,) = (path for path in ROOT.glob(f"*/{package}") if path.is_dir())
    for path in folder.rglob("*.py"):
        text = path.read_text("utf-8")
        assert not text.strip() or ast.get_docstring(ast.parse(text)), path


VAGUE = re.compile(r"\W*(What|Of|Those|That|It|Whether|How)\b")
"""Openings that need the code to be understood: a docstring begins with a noun or a verb."""


def docstrings(path: Path) -> Iterator[ast.Constant]:
    """Yield the docstrings of a file, those of attributes included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                yield each.value


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{found.lineno}"
        for path in repository_files()
        if path.suffix == ".py"
        for found in docstrings(path)
        if isinstance(found.value, str) and VAGUE.match(found.value)
    ]
    assert not vague, f"begin with {VAGUE.pattern}: {', '.join(vague)}"


ASKS_THE_TIME_OF_DAY = {
    *("src/paged_core/cli/prompts_file.py", "plugins/paged_plugins/server/service.py"),
    *(
        f"plugins/paged_plugins/server/openai/{name}.py"
        for name in ("chat", "chunks", "completions")
    ),
    "plugins/paged_plugins/server/responses/events.py",
    *(f"plugins/paged_plugins/metrics/{name}.py" for name in ("live_view", "spans")),
    "plugins/paged_plugins/routing/block_events.py",
    *(
        "plugins/paged_plugins/lab/results/folder.py",
        "plugins/paged_plugins/bench/serve_command.py",
    ),
    *(f"plugins/paged_plugins/lab/commands/{name}.py" for name in ("calibrate", "league")),
    "backends/paged_backends/text/chat_template.py",
}
"""Modules that write a date, or begin to number at one."""


def test_no_decision_and_no_duration_depends_on_the_time_of_day() -> None:
    """The time of day jumps: what is measured or waited for is on a clock that does not."""
    asks = re.compile(
        r"\btime\.time(_ns)?\(|from time import .*\btime\b|\bdatetime\.(utc)?now\(|\btoday\("
    )
    found = {
        str(path.relative_to(ROOT))
        for folder in ("src/paged_core", "plugins", "policies", "backends")
        for path in (ROOT / folder).rglob("*.py")
        if "testing" not in path.parts and asks.search(path.read_text())
    }
    assert found == ASKS_THE_TIME_OF_DAY
