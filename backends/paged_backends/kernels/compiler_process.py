"""Running a compiler, and the lines of its output that say what went wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence

from paged_backends.kernels.build import CannotCompile


def compile_with(job: Sequence[str], remedy: str) -> None:
    """Run a compiler with its arguments.

    Raises:
        CannotCompile: it failed, or does not run; the message ends with its own, or with
            ``remedy``.
    """
    done = run(job, timeout=300)
    if done is None:
        raise CannotCompile(f"{job[0]} does not run or takes minutes; {remedy}")
    if done.returncode:
        said = "\n".join(essential(done.stderr)) or f"exit status {done.returncode}"
        raise CannotCompile(f"{job[0]} failed: {said}")


def essential(text: str) -> Iterator[str]:
    """The first lines that mention an error."""
    lines = text.strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    yield from (errors or lines)[:5]


def run(job: Sequence[str], timeout: float = 30) -> subprocess.CompletedProcess[str] | None:
    """Run a command; ``None``: it cannot be run, or has not ended after ``timeout`` seconds."""
    try:
        return subprocess.run(
            job, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
