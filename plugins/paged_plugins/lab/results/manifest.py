"""The manifest of a folder of results: what was run, with what, where and when."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paged_core.registry import Registry
from paged_plugins.lab.measures.service_level import ServiceLevel
from paged_plugins.lab.results.atomic_file import write_bytes
from paged_plugins.lab.study.arm import Arm
from paged_plugins.lab.study.arms import PlannedArm
from paged_plugins.lab.study.yaml_file import Strict
from paged_plugins.machine import summary
from paged_plugins.workloads.spec import WorkloadSpec

MANIFEST = "manifest.json"
"""Name in a folder of results."""
_PACKAGES = (
    *("paged-core", "numpy", "pydantic", "torch", "transformers", "pyarrow", "ray", "triton"),
)


class RunEntry(Strict):
    """A run, and where its record is."""

    arm: str
    workload: str
    seed: int
    key: Annotated[str, Field(pattern=r"^[0-9a-f]+$")]
    problem: str | None = None
    """Why there is no record."""
    failure: str | None = None
    """What the first request was told that failed."""


class Manifest(Strict):
    """All that a reader of the tables needs to know about where they come from."""

    format: Literal[1] = 1
    command: str
    arms: tuple[Arm, ...]
    settings: dict[str, dict[str, Any]]
    """Resolved, by the label of the arm."""
    workloads: tuple[dict[str, Any], ...]
    seeds: tuple[int, ...]
    slo: ServiceLevel
    runs: tuple[RunEntry, ...] = ()
    versions: dict[str, str]
    git: str | None
    """The revision, if the code is a checkout; it ends with ``+changes`` if files differ."""
    machine: dict[str, Any]
    started: str
    """UTC, as ISO 8601."""
    finished: str | None = None
    """``None``: it was interrupted, or is under way."""


def new_manifest(
    command: str,
    arms: Sequence[PlannedArm],
    workloads: Iterable[WorkloadSpec],
    seeds: Iterable[int],
    slo: ServiceLevel,
    registry: Registry,
) -> Manifest:
    """Return the manifest of runs that start now.

    Args:
        command: as it was given.
        arms: the first is the base.
    """
    return Manifest(
        command=command,
        arms=tuple(one.arm for one in arms),
        settings={one.arm.label: one.settings.model_dump(mode="json") for one in arms},
        workloads=tuple(workload.written() for workload in workloads),
        seeds=tuple(seeds),
        slo=slo,
        versions=versions(registry),
        git=git_revision(),
        machine=summary(),
        started=now(),
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a manifest into a folder of results."""
    write_bytes(folder / MANIFEST, (manifest.model_dump_json(indent=2) + "\n").encode())


def now() -> str:
    """Return the time, UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions(registry: Registry) -> dict[str, str]:
    """Return the versions of the packages that results may depend on."""
    found = {one.distribution: one.version for one in registry.plugins if one.status == "active"}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return dict(sorted(found.items()))


def git_revision() -> str | None:
    """Return the revision of the checkout that this code is in; ``None``: it is in none."""
    file = Path(__file__)
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    revision = _git(file.parent, "rev-parse", "HEAD")
    changed = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{revision}+changes" if changed else revision


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
