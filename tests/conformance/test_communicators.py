"""First-party communicators pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from marks import long
from paged_testing import CommunicatorConformance

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]


class TestShm(CommunicatorConformance):
    component = "shm"
    timeout = 1.0


@long(
    "test_a_rank_that_does_not_come_is_named_within_the_deadline",
    "test_ranks_that_die_or_stop_in_an_operation_are_named",
    "test_a_rank_that_never_joins_is_named",
    "test_gives_back_what_it_holds_when_it_is_closed",
    "test_ranks_that_are_asked_for_different_things_say_so",
)
class TestShmInPieces(CommunicatorConformance):
    """Nearly every tensor is larger than a buffer; ranks that are lost are as in `TestShm`."""

    component: ClassVar[str | Mapping[str, Any]] = {"name": "shm", "buffer_size": 1024}
    large = 1 << 18


class TestGloo(CommunicatorConformance):
    component = "gloo"
    timeout = 1.0
    num_kept = 1  # PyTorch's store writes to its memory when it is deleted, which may be late


class TestNccl(CommunicatorConformance):
    """The cases are of tensors on a CPU; ``tests/unit/test_communicators.py`` has those of NCCL."""

    component = "nccl"
    may_be_skipped = True

    def refusal(self) -> str | None:
        return super().refusal() or "its cases are of tensors on a CPU"
