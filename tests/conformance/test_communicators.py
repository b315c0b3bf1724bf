"""First-party communicators pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from paged_testing import CommunicatorConformance

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]


class TestShm(CommunicatorConformance):
    component = "shm"


class TestShmInPieces(CommunicatorConformance):
    """Nearly every tensor is larger than a buffer."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "shm", "buffer_size": 1024}
    large = 1 << 18


class TestGloo(CommunicatorConformance):
    component = "gloo"


class TestNccl(CommunicatorConformance):
    """The cases are of tensors on a CPU; ``tests/unit/test_communicators.py`` has those of NCCL."""

    component = "nccl"
    may_be_skipped = True

    def refusal(self) -> str | None:
        return super().refusal() or "its cases are of tensors on a CPU"
