"""First-party block allocators pass the conformance class of their slot."""

from __future__ import annotations

from paged_core.testing import BlockAllocatorConformance


class TestUncached(BlockAllocatorConformance):
    component = "uncached"


class TestHashCached(BlockAllocatorConformance):
    component = "hash_cached"


class TestHashCachedMerging(BlockAllocatorConformance):
    component = {"name": "hash_cached", "merge_duplicates": True}  # noqa: RUF012
