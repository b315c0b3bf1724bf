"""First-party block allocators pass the conformance class of their slot."""

from __future__ import annotations

from paged_testing import BlockAllocatorConformance


class TestUncached(BlockAllocatorConformance):
    component = "uncached"


class TestHashCached(BlockAllocatorConformance):
    component = "hash_cached"


class TestHashCachedMerging(BlockAllocatorConformance):
    component = {"name": "hash_cached", "merge_duplicates": True}  # noqa: RUF012


class TestContiguous(BlockAllocatorConformance):
    component = "contiguous"


class TestContiguousPowerOfTwo(BlockAllocatorConformance):
    component = {"name": "contiguous", "reserve": "power_of_two"}  # noqa: RUF012


class TestContiguousExact(BlockAllocatorConformance):
    component = {"name": "contiguous", "reserve": "exact"}  # noqa: RUF012
