"""Stand-ins for vLLM's request, cache manager and block pool, as far as the policies touch them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from paged_core.request import Request
from paged_core.sequence import Status

from paged_core_vllm.views import CacheView, GroupView


@dataclass(eq=False)
class FakeRequest:
    """A request with the attributes of vLLM's."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int = 16
    priority: int = 0
    arrival_time: float = 0.0
    extra_args: dict[str, Any] | None = None
    cache_salt: str | None = None
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    num_in_flight_tokens: int = 0
    num_preemptions: int = 0
    skip_reading_prefix_cache: bool = False
    output: list[int] = field(default_factory=list)
    status: Any = field(default_factory=lambda: SimpleNamespace(name="WAITING"))

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(extra_args=self.extra_args)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def all_token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    def __post_init__(self) -> None:
        self.block_hashes: Any = self.request_id  # by which FakeManager finds what a test says

    def is_finished(self) -> bool:
        return bool(self.status.name.startswith("FINISHED"))


class FakeManager:
    """Blocks by request, and a prefix cache in which nothing is found unless a test says so."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.held: dict[str, list[int]] = {}
        self.found: dict[str, int] = {}
        self.num_blocks = num_blocks

    @property
    def block_pool(self) -> Any:
        held = Counter(block for ids in self.held.values() for block in ids)
        blocks = range(max(self.num_blocks, max(held, default=0) + 1))
        return SimpleNamespace(
            get_num_free_blocks=lambda: self.num_blocks - held.total(),
            blocks=[SimpleNamespace(block_id=n, block_hash=None, ref_cnt=held[n]) for n in blocks],
        )

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return (self.held.get(request_id, []),)

    @property
    def coordinator(self) -> Any:
        return SimpleNamespace(
            find_longest_cache_hit=lambda name, most: (None, self.found.get(name, 0), 0)
        )


class SettableView(GroupView):
    """A view through which a test changes vLLM's request."""

    __slots__ = ()

    @property
    def status(self) -> Status:  # type: ignore[override]
        return GroupView.status.fget(self)  # type: ignore[attr-defined,no-any-return]

    @status.setter
    def status(self, value: Status) -> None:
        self.inner.status = SimpleNamespace(name=value.name)

    @property
    def num_preemptions(self) -> int:  # type: ignore[override]
        return int(self.inner.num_preemptions)

    @num_preemptions.setter
    def num_preemptions(self, value: int) -> None:
        self.inner.num_preemptions = value


class FakeCache(CacheView):
    """A cache view that can release a group, as the kits ask for."""

    def __init__(self, num_blocks: int = 64, block_size: int = 4) -> None:
        self.manager = FakeManager(num_blocks)
        super().__init__(self.manager, block_size, caches_prefixes=True)

    def release_group(self, group: GroupView) -> None:
        self.manager.held.pop(group.id, None)
        group.inner.num_computed_tokens = 0


def view_of(request: Request, number: int = 0, cache: FakeCache | None = None) -> SettableView:
    """Return the view of a vLLM request that asks what ``request`` does."""
    extra = {"tenant": request.tenant, "deadline": request.deadline}
    inner = FakeRequest(
        request.id,
        list(request.prompt),
        request.sampling.max_tokens or 64,
        request.priority,
        request.arrival,
        {key: value for key, value in extra.items() if value is not None},
    )
    view = SettableView(inner, number, cache or FakeCache(), 2048)
    assert view.request.prompt == request.prompt  # and it is made, which is no change
    return view


def waiting_views(requests: Sequence[Request]) -> list[SettableView]:
    """Return views of waiting requests, in arrival order."""
    cache = FakeCache()
    return [view_of(request, number, cache) for number, request in enumerate(requests)]


def running_views(
    cache: FakeCache,
    requests: Sequence[Request],
    computed: Sequence[int],
    ended: Iterable[int] = (),
    *,
    grown: bool = True,
    first: int = 0,
) -> list[SettableView]:
    """Return views of requests that run, partly computed, numbered from `first` on; each is one
    sequence, so that none has `ended`, and none has generated anything (`grown`)."""
    views = []
    for number, (request, share) in enumerate(zip(requests, computed, strict=False), first):
        view = view_of(request, number, cache)
        count = 1 + share % len(request.prompt)
        block = 100 * number
        cache.manager.held[view.id] = list(range(block, block + -(-count // cache.block_size)))
        view.inner.num_computed_tokens = count
        view.status = Status.RUNNING
        views.append(view)
    return views


@dataclass(eq=False)
class FakeBlock:
    """A block with the attributes of vLLM's."""

    block_id: int
    block_hash: str | None = None
    block_hash_num_tokens: int | None = None


class FakePool:
    """A block pool whose list of free blocks is replaced."""

    def __init__(self, num_blocks: int) -> None:
        self.num_gpu_blocks = num_blocks
        self.blocks = [FakeBlock(number) for number in range(num_blocks)]
        self.free_block_queue: Any = SimpleNamespace(get_all_free_blocks=lambda: list(self.blocks))
        self.touched: list[int] = []

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        self.touched += [block.block_id for block in blocks]

    def cache_full_blocks(
        self, request: Any, blocks: Sequence[FakeBlock], first: int, last: int
    ) -> None:
        for place, block in enumerate(blocks[first:last], first):
            block.block_hash = f"{request}-{place}"
            block.block_hash_num_tokens = 4 * (place + 1)
