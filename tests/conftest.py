"""What every test needs: one thread of its own, and logs as a library has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is first imported
if not Path("/dev/nvidiactl").exists():  # read by Triton: kernels are executed on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _library_logs() -> Iterator[None]:
    """A command that ran in this process may have configured them."""
    structlog.reset_defaults()
    yield
