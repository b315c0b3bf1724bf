"""Makes a checkout importable without installing it, where no package index can be reached.

Standard library only: it runs before anything else can be imported.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "policies", "backends", "plugins", "tests")
_SYSTEMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
"""pip accepts a wheel for a version of glibc only if exactly that version is named."""


def requirements() -> list[str]:
    """Return what the package and its tests need, as ``name>=version``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["testing"]]


def missing(needed: list[str]) -> list[str]:
    """Return those of ``needed`` that this Python does not have, or has in an older version."""
    return [requirement for requirement in needed if not _satisfied(requirement)]


def _satisfied(requirement: str) -> bool:
    name, _, least = requirement.partition(">=")
    try:
        return _numbers(version(name.strip())) >= _numbers(least)
    except PackageNotFoundError:
        return False


def _numbers(text: str) -> list[int]:
    found = re.match(r"[\d.]*", text)
    return [int(part) for part in (found[0] if found else "").split(".") if part]


def how_to_carry(absent: list[str]) -> str:
    """Return the command that collects ``absent`` elsewhere, and how to use the result."""
    release = ".".join(platform.python_version_tuple()[:2])
    systems = " ".join(f"--platform {one}_{platform.machine()}" for one in _SYSTEMS)
    lines = (
        f"{sys.executable} lacks {', '.join(absent)}.",
        "Where a package index can be reached, in a checkout of this version:",
        f"    python3 -m pip download --dest wheels --constraint constraints.txt "
        f"--only-binary=:all: --python-version {release} {systems} "
        + " ".join(f"'{one}'" for one in absent),
        "Copy the folder here, and give it with WHEELS=wheels.",
    )
    return "\n".join(lines)


def install(wheels: Path, target: Path) -> None:
    """Install all wheels of a folder into ``target``, without an index and without resolving.

    Raises:
        SystemExit: the folder has no wheel, or pip cannot install one; it says which.
    """
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise SystemExit(f"WHEELS={wheels} has no file that ends in .whl")
    options = ["--no-index", "--no-deps", "--no-compile", "--upgrade", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, *found]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the wheels of {wheels} cannot be installed:\n{done.stderr.strip()}")


def write_metadata(folder: Path) -> None:
    """Write what an installation would: the version, and the entry points that name the plugins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    code = (ROOT / "src" / "paged_core" / "_version.py").read_text("utf-8")
    found = re.search(r'__version__ = "(.*)"', code)
    assert found is not None
    info = folder / f"paged_core-{found[1]}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {found[1]}", ""]
    (info / "METADATA").write_text("\n".join(lines), "utf-8")
    groups = []
    for group, entries in project["entry-points"].items():
        named = [f"{name} = {module}" for name, module in entries.items()]
        groups.append("\n".join([f"[{group}]", *named, ""]))
    (info / "entry_points.txt").write_text("\n".join(groups), "utf-8")


def search_path(folder: Path) -> list[str]:
    """Return the folders for ``PYTHONPATH``: carried packages, metadata, sources."""
    return [str(folder / "packages"), str(folder / "metadata"), *(str(ROOT / p) for p in SOURCES)]
