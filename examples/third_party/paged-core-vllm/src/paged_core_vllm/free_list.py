"""A list of free blocks for vLLM, of which an evictor of paged-core chooses among the cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from paged_core.errors import OutOfBlocks
from paged_core.ids import BlockId
from paged_core.interfaces.evictor import BlockInfo, Evictor

from paged_core_vllm.faults import Tally


class FreeList:
    """The methods of vLLM's ``FreeKVCacheBlockQueue`` that its block pool calls.

    Blocks without content are handed out first, in vLLM's order. The cached ones are also kept in
    vLLM's own order, which says where the evictor differs, and which decides if the evictor raises
    or answers with a block that is not free.

    Args:
        pool: vLLM's block pool, whose list it becomes.
    """

    def __init__(self, pool: Any, evictor: Evictor, tally: Tally) -> None:
        free = pool.free_block_queue.get_all_free_blocks()
        self._pool, self._evictor, self._tally = pool, evictor, tally
        self._empty: OrderedDict[int, Any] = OrderedDict((b.block_id, b) for b in free)
        self._cached: OrderedDict[int, Any] = OrderedDict()
        self._untold: set[int] = set()
        """Cached blocks of which the evictor could not be told."""
        self._departures = self._cachings = 0
        self._hits = [0] * pool.num_gpu_blocks
        self._cache_order = [0] * pool.num_gpu_blocks
        self._parents: list[int | None] = [None] * pool.num_gpu_blocks
        self.num_free_blocks = len(free)
        self._count_calls_of(pool)
        pool.free_block_queue = self

    def _count_calls_of(self, pool: Any) -> None:
        """Count hits, and the order in which blocks were cached, where the pool learns of them."""
        touch, cache = pool.touch, pool.cache_full_blocks

        def counted_touch(blocks: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            for block in blocks:
                self._hits[block.block_id] += 1
            return touch(blocks, *args, **kwargs)

        def counted_cache(
            request: Any,
            blocks: Sequence[Any],
            num_cached_blocks: int,
            num_full_blocks: int,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            result = cache(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
            new = blocks[num_cached_blocks:num_full_blocks]
            for place, block in enumerate(new, num_cached_blocks):
                number = block.block_id
                self._cachings += 1
                self._cache_order[number] = self._cachings
                before = blocks[place - 1].block_hash if place else None
                self._parents[number] = None if before is None else hash(before)
            return result

        pool.touch, pool.cache_full_blocks = counted_touch, counted_cache

    # ------------------------------------------------------------------ taken

    def popleft(self) -> Any:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        """Take ``n`` blocks; ``OutOfBlocks``, and none is taken: there are fewer."""
        if n > self.num_free_blocks:
            raise OutOfBlocks(f"{n} blocks are to be taken, and {self.num_free_blocks} are free")
        empty, taken = self._empty, []
        for _ in range(n):
            block = empty.popitem(last=False)[1] if empty else self._evict()
            self._hits[block.block_id] = 0
            taken.append(block)
        self.num_free_blocks -= n
        return taken

    def remove(self, block: Any) -> None:
        """Take a block that is used again."""
        number = block.block_id
        if self._empty.pop(number, None) is None:
            del self._cached[number]
            self._tell_removed(number)
        self.num_free_blocks -= 1

    def _evict(self) -> Any:
        own = next(iter(self._cached))
        count = self._tally.evictor
        try:
            number: int = self._evictor.evict()
            if number not in self._cached:
                raise ValueError(f"evict() returned {number!r}, which is no block that it holds")
        except Exception as error:
            if not self._untold:  # else it may well hold none
                self._tally.fault("evictor", self._evictor, error)
            number = own
            self._tell_removed(number)
        else:
            count.decided(len(self._cached) > 1, number != own)
        return self._cached.pop(number)

    def _tell_removed(self, number: int) -> None:
        if number in self._untold:
            self._untold.discard(number)
            return
        try:
            self._evictor.remove(BlockId(number))
        except Exception as error:
            self._tally.fault("evictor", self._evictor, error)

    # ------------------------------------------------------------------ given back

    def append(self, block: Any) -> None:
        self.append_n([block])

    def append_n(self, blocks: Sequence[Any]) -> None:
        """Give back blocks that are to be evicted late: those of one request together."""
        if not blocks:
            return
        self._departures += 1
        for block in blocks:
            number, key = block.block_id, block.block_hash
            if key is None:
                self._empty[number] = block
                continue
            self._cached[number] = block
            info = BlockInfo(
                num_tokens=getattr(block, "block_hash_num_tokens", None) or 0,
                num_hits=self._hits[number],
                last_use=self._departures,
                cache_order=self._cache_order[number],
                content_key=hash(key),
                parent_key=self._parents[number],
            )
            try:
                self._evictor.add(BlockId(number), info)
            except Exception as error:
                self._untold.add(number)
                self._tally.fault("evictor", self._evictor, error)
        self.num_free_blocks += len(blocks)

    def prepend_n(self, blocks: Sequence[Any]) -> None:
        """Give back blocks that are to be handed out first."""
        for block in reversed(blocks):
            self._empty[block.block_id] = block
            self._empty.move_to_end(block.block_id, last=False)
        self.num_free_blocks += len(blocks)

    # ------------------------------------------------------------------ listed

    def get_all_free_blocks(self) -> list[Any]:
        """Return the free blocks, in vLLM's own order."""
        return [*self._empty.values(), *self._cached.values()]

    def iter_blocks_after(self, cursor: Any) -> Iterator[Any]:
        """Refuse: the order of an evictor is known one block at a time."""
        raise NotImplementedError(
            "this KV connector walks the list of free blocks in vLLM's own order; set evictor: lru"
        )
