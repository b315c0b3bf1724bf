"""Installs the programs of programs.toml: ``python tests/clients/install.py [FOLDER]``."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

VERSIONS = Path(__file__).with_name("programs.toml")
FOLDER = Path(os.environ.get("CLIENTS_FOLDER", VERSIONS.parents[2] / "build" / "clients"))
"""Where they are: an environment of Python for each table but ``node``, and ``node_modules``."""


def install(folder: Path) -> None:
    """Install all programs, about 5 GB; those that are there already stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, versions in tomllib.loads(VERSIONS.read_text()).items():
        if table == "node":
            (folder / "package.json").write_text('{"private": true}')
            packages = [f"{name}@{version}" for name, version in versions.items()]
            command = ["npm", "install", "--prefix", str(folder), "--save-exact", *packages]
        else:
            if not (folder / table).exists():
                venv.create(folder / table, with_pip=True)
            packages = [f"{name}=={version}" for name, version in versions.items()]
            command = [str(folder / table / "bin" / "pip"), "install", "--quiet", *packages]
        subprocess.run(command, check=True)
    (folder / VERSIONS.name).write_text(VERSIONS.read_text())


if __name__ == "__main__":
    install(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
