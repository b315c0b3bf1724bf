"""Runs the examples of the documentation.

In a page, a comment before a fenced block says what the block is::

    <!-- run -->            a ``python`` block is executed, a ``console`` block's commands are run
    <!-- run with MODULE -->  likewise, where that module is installed
    <!-- file: NAME -->     the block is the content of a file that later blocks use
    <!-- copy: PATH -->     no block: a file of the repository that blocks use by its name

Blocks of a page share a folder and, if they are Python, their names. In a ``console`` block, lines
that start with ``$`` are commands and the others what they print, standard error included; a line
``...`` matches any number of lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>run(?: with (?P<needs>\w+))?|file: (?P<file>\S+)) -->\n)?"
    r"```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    body: str
    runs: bool
    file: str | None
    needs: str | None
    """Module without which it is not run."""

    @property
    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command of a ``console`` block, and the lines that it prints."""
        for part in re.split(r"^\$ ", self.body, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            while command.endswith("\\"):
                command += f"\n{lines.pop(0)}"
            yield command, lines


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("body")) + 1,
            found["language"],
            found["body"],
            (found["mark"] or "").startswith("run"),
            found["file"],
            found["needs"],
        )
        for found in _BLOCK.finditer(text)
    ]


def run_page(page: Path, folder: Path, path: Sequence[str | Path] = ()) -> None:
    """Run the marked blocks of a page in ``folder``.

    Args:
        path: where installed packages are looked for first.
    """
    names: dict[str, Any] = {"__name__": "snippet"}
    for copied in re.findall(r"^<!-- copy: (\S+) -->$", page.read_text("utf-8"), re.MULTILINE):
        shutil.copy(ROOT / copied, folder)
    for block in blocks(page):
        if block.file:
            write(block, folder)
        elif block.needs and find_spec(block.needs) is None:
            continue
        elif block.runs and block.language == "python":
            source = "\n" * (block.line - 1) + block.body
            with chdir(folder):
                exec(compile(source, str(page), "exec", dont_inherit=True), names)
        elif block.runs:
            assert block.language == "console", f"{page}:{block.line}: cannot run {block.language}"
            for command, expected in block.commands:
                printed = run(command, folder, path)
                where = f"{page.relative_to(ROOT)}:{block.line}: $ {command}"
                assert matches(expected, printed), "\n".join((where, *printed))


def write(block: Block, folder: Path) -> None:
    """Write a block that is a file."""
    assert block.file is not None
    target = folder / block.file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.body, "utf-8")


def run(command: str, folder: Path, path: Sequence[str | Path] = ()) -> list[str]:
    """Run a command line in a shell, and return the lines that it prints."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PAGED_CORE_")}
    environ |= {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "HF_HUB_OFFLINE": "1",
        "PAGED_CORE_THREADS": "1",  # tests run side by side
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return [line.rstrip() for line in done.stdout.rstrip().splitlines()]


def matches(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Return whether ``printed`` is what the page shows; ``...`` matches any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
