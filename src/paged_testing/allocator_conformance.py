"""What a block allocator must do, with a state machine that compares it with a model."""

from __future__ import annotations

from typing import ClassVar

from paged_testing.allocator_cases import AllocatorCases
from paged_testing.allocator_machine import AllocatorMachine, PrefixCacheMachine
from paged_testing.component_conformance import ServesEveryWorkload


class BlockAllocatorConformance(ServesEveryWorkload, AllocatorCases):
    """Subclass it for a block allocator; the optional protocols that it supports are detected::

    class TestMyAllocator(BlockAllocatorConformance):
        component = "my_allocator"
    """

    max_examples: ClassVar[int] = 40

    def test_behaves_like_the_model(self) -> None:
        kind = PrefixCacheMachine if self._caches else AllocatorMachine
        self.check_machine(lambda: kind(self.make, self.block_size))
