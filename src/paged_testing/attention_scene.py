"""Sequences in a paged cache, a batch of their next tokens, and the expected result of attention.

Tensors are torch's, which is imported when the first one is made: the kit does not import it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paged_core.interfaces.attention import AttentionBackend, AttentionBatch, SupportsCacheLayout
from paged_core.interfaces.layer import KVCacheDtype, LayerSpec


def attention_batch(
    tables: NDArray[np.integer[Any]],
    chunks: Sequence[tuple[int, int]],
    block_size: int,
    device: str = "cpu",
) -> AttentionBatch:
    """Return the batch of these sequences.

    Args:
        tables: [S, W], the block table of each sequence.
        chunks: how many tokens of each sequence are cached, and how many are new.
        device: of the tensors.
    """
    torch: Any = import_module("torch")
    new = [count for _, count in chunks]
    starts = np.cumsum([0, *new], dtype=np.int32)
    lengths = np.array([sum(both) for both in chunks], np.int32)
    owners = np.repeat(np.arange(len(chunks)), new)
    positions = np.arange(len(owners)) - (starts[1:] - lengths)[owners]
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    blocks = np.ascontiguousarray(tables, np.int32)

    def tensor(array: NDArray[Any]) -> Any:
        return torch.from_numpy(array).to(device)

    return AttentionBatch(
        query_start=tensor(starts),
        seq_lens=tensor(lengths),
        block_tables=tensor(blocks),
        slot_mapping=tensor(slots.astype(np.int64)),
        query_start_host=starts,
        seq_lens_host=lengths,
        block_tables_host=blocks,
        max_query_len=max(new),
        max_seq_len=int(lengths.max()),
    )


def numbers(batch: AttentionBatch) -> dict[str, Any]:
    """Return the fields of a batch as plain numbers."""
    return {name: n if isinstance(n, int) else n.tolist() for name, n in _fields(batch)}


def _fields(batch: AttentionBatch) -> Iterator[tuple[str, Any]]:
    yield from ((each.name, getattr(batch, each.name)) for each in fields(batch))


_READS = {"tolist", "item", "cpu", "numpy", "nonzero", "argwhere", "masked_select", "unique"}
_READS |= {f"__{name}__" for name in ("int", "float", "bool", "index", "array", "contains")}
"""Functions of tensors that wait for what a device computes."""


def unreadable(batch: AttentionBatch) -> AttentionBatch:
    """Return a batch of which no tensor, and nothing that is computed from one, may be read.

    Raises:
        AssertionError: by code that does read one.
    """
    torch: Any = import_module("torch")

    class Unreadable(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(function, "__name__", "")
            assert name not in _READS, (
                f"{name}() of a tensor of the batch waits for the device: its numbers are in "
                "query_start_host, seq_lens_host and block_tables_host"
            )
            return super().__torch_function__(function, types, args, kwargs or {})

    tensors = {name: n for name, n in _fields(batch) if isinstance(n, torch.Tensor)}
    return replace(batch, **{name: n.as_subclass(Unreadable) for name, n in tensors.items()})


_Rows = list[tuple[int, int, int, Any]]
"""Sequence, tokens cached, tokens new, and their queries."""

Arrange = Callable[[Any, Any, Any], tuple[Any, Any, Any]]


class Scene:
    """Sequences with shuffled block tables, over a cache that is NaN where nothing was written."""

    def __init__(
        self,
        backend: AttentionBackend,
        layer: LayerSpec,
        chunks: Sequence[tuple[int, int]],
        seed: int,
        *,
        first_block: int = 0,
    ) -> None:
        """
        Args:
            chunks: for each sequence, how many tokens are cached and how many are new.
            first_block: blocks below it are not used, and take no memory on a CPU; if it is not 0,
                the cache is zeros where nothing was written.
        """
        self._torch: Any = import_module("torch")
        torch = self._torch
        random = torch.Generator().manual_seed(seed)
        self.backend, self.layer, self.chunks = backend, layer, list(chunks)
        dtype = getattr(torch, layer.dtype)
        lengths = [cached + new for cached, new in chunks]
        width = max(-(-length // layer.block_size) for length in lengths)
        self.num_blocks = first_block + width * len(chunks) + 3
        order = torch.randperm(self.num_blocks - first_block, generator=random) + first_block
        self.tables = order[: width * len(chunks)].view(len(chunks), width)

        def tokens(heads: int) -> Any:
            values = torch.randn(sum(lengths), heads, layer.head_dim, generator=random)
            return values.to(layer.device, dtype)

        def stored() -> list[Any]:
            rows = tokens(layer.num_kv_heads)
            if layer.kv_cache_dtype != "auto":
                rows = _EXACT[layer.kv_cache_dtype](torch, rows)
            return list(rows.split(lengths))

        self._queries = tokens(layer.num_heads).split(lengths)
        self.queries = [rows[-new:] for rows, (_, new) in zip(self._queries, chunks, strict=True)]
        self.keys, self.values = stored(), stored()
        self._shared: dict[int, tuple[int, int]] = {}
        """Sequences that share blocks of another: with which, and how many tokens."""
        self._results = deque[tuple[Any, Any]](maxlen=6)
        self._last_tables = np.zeros((0, 0), np.int32)
        self.cache = self._allocate(layer.device) if not first_block else self._zeros()
        self._attention = backend.bind(layer, self.cache)
        # what is cached is written by attention whose results are dropped: let it see little
        narrow = replace(layer, sliding_window=1)
        self._writer = backend.bind(narrow if backend.check(narrow) is None else layer, self.cache)

    # ------------------------------------------------------------------ actions

    def run(
        self,
        members: Sequence[int],
        *,
        write_cached: bool = True,
        arrange: Arrange | None = None,
        plan: Any = None,
    ) -> list[Any]:
        """Run these sequences' new tokens as one batch; return each one's result.

        Args:
            write_cached: write what they have cached first.
            arrange: changes the memory layout of query, key and value.
            plan: of another scene with the same blocks; ``None``: it is planned.
        """
        if write_cached:
            self.write_cached(members)
        rows = self._new(members)
        inputs = self._inputs(rows) if arrange is None else arrange(*self._inputs(rows))
        given = [part.nan_to_num() for part in inputs]
        out: Any = self._attention.forward(*inputs, plan or self._plan(rows))
        stays = [self._torch.equal(a, b.nan_to_num()) for a, b in zip(given, inputs, strict=True)]
        assert all(stays), f"it changed query, key or value, which stay: {stays}"
        for name in ("dtype", "shape", "device"):
            got, wanted = getattr(out, name), getattr(inputs[0], name)
            assert got == wanted, f"the {name} of its result is {got}, that of the queries {wanted}"
        for number, (result, kept) in enumerate(reversed(self._results), 1):
            same = self._torch.equal(result.nan_to_num(), kept)
            assert same, f"a call changed the result of the one {number} before it"
        self.result = out
        self._results.append((out, out.nan_to_num()))
        return [part.cpu() for part in out.split([new for _, _, new, _ in rows])]

    def plan(self, members: Sequence[int]) -> Any:
        """Return a plan for these sequences' new tokens."""
        return self._plan(self._new(members))

    def batch_of(self, members: Sequence[int]) -> AttentionBatch:
        """Return the batch of these sequences' new tokens; :attr:`batch` was planned last."""
        return self._batch(self._new(members))

    def inputs(self, members: Sequence[int]) -> tuple[Any, Any, Any]:
        """Return query, key and value of these sequences' new tokens."""
        return self._inputs(self._new(members))

    def write_cached(self, members: Sequence[int]) -> None:
        """Write the cached tokens, in one batch; those that two of the sequences share, once."""
        rows: _Rows = []
        for index in members:
            cached, first = self.chunks[index][0], 0
            owner, shared = self._shared.get(index, (index, 0))
            if owner in members:
                first = min(shared, cached, self.chunks[owner][0])
            if first < cached:
                shape = (cached - first, self.layer.num_heads, self.layer.head_dim)
                rows.append((index, first, cached - first, self.keys[index].new_zeros(shape)))
        if rows:
            self._writer.forward(*self._inputs(rows), self._plan(rows))

    def go_on(self, index: int, cached: int, new: int) -> None:
        """Let a sequence have so many tokens in the next step, of those that it will ever have."""
        self.chunks[index] = cached, new
        self.queries[index] = self._queries[index][cached : cached + new]

    def move_block(self, index: int, place: int) -> None:
        """Copy a block of a sequence to one that is in no table, which is its own from then on."""
        free = min({*range(self.num_blocks)} - {*self.tables.flatten().tolist()})
        self.copy_blocks(self.cache, [int(self.tables[index, place])], self.cache, [free])
        self.tables[index, place] = free

    def move_blocks(self, distance: int) -> None:
        """Copy every block to another one, within the cache: all are moved in a circle."""
        targets = self._torch.arange(self.num_blocks).roll(distance)
        self.copy_blocks(self.cache, range(self.num_blocks), self.cache, targets.tolist())
        self.tables = targets[self.tables]

    def swap_blocks(self) -> None:
        """Copy all blocks to the host in another order, poison the device's, and copy them back."""
        host = self._allocate("cpu")
        blocks = list(range(self.num_blocks))
        self.copy_blocks(self.cache, blocks, host, blocks[::-1])
        self._poison(self.cache)
        self.copy_blocks(host, blocks[::-1], self.cache, blocks)

    def copy_blocks(
        self, source: Any, origins: Sequence[int], target: Any, destinations: Sequence[int]
    ) -> None:
        """Copy blocks as an executor does."""
        if isinstance(self.backend, SupportsCacheLayout):
            self.backend.copy_blocks(source, origins, target, destinations)
            return
        torch, dim = self._torch, self.backend.block_dim()
        blocks = source.index_select(dim, torch.tensor(origins, device=source.device))
        target.index_copy_(
            dim, torch.tensor(destinations, device=target.device), blocks.to(target.device)
        )

    def unused_blocks(self) -> list[bytes]:
        """Return the bytes of every block that is in no block table."""
        unused = sorted(set(range(self.num_blocks)) - set(self.tables.flatten().tolist()))
        host = self._allocate("cpu")
        self._poison(host)
        found = []
        for block in unused:
            self.copy_blocks(self.cache, [block], host, [0])
            found.append(b"".join(part.numpy().tobytes() for part in self._bytes(host)))
        return found

    def _allocate(self, device: str) -> Any:
        """Return a cache whose bytes are all 255: NaN in every dtype."""
        if isinstance(self.backend, SupportsCacheLayout):
            cache = self.backend.allocate_cache(self.layer, self.num_blocks, device)
        else:
            cache = self._torch.empty(
                self.backend.cache_shape(self.layer, self.num_blocks),
                dtype=self._stored_dtype,
                device=device,
            )
        self._poison(cache)
        return cache

    def _zeros(self) -> Any:
        """Return a cache of zeros, which a CPU maps on first use."""
        shape = self.backend.cache_shape(self.layer, self.num_blocks)
        if self.layer.device != "cpu":
            return self._torch.zeros(shape, dtype=self._stored_dtype, device=self.layer.device)
        size = self._stored_dtype.itemsize * int(np.prod(shape))
        zeros = self._torch.from_numpy(np.zeros(size, np.uint8))
        return zeros.view(self._stored_dtype).view(shape)

    @property
    def _stored_dtype(self) -> Any:
        layer, torch = self.layer, self._torch
        return getattr(torch, layer.dtype) if layer.kv_cache_dtype == "auto" else torch.uint8

    def _poison(self, cache: Any) -> None:
        for part in self._bytes(cache):
            part.fill_(255)

    def _bytes(self, cache: Any) -> list[Any]:
        """Views of the tensors of a cache as bytes."""
        tensors = cache if isinstance(cache, (list, tuple)) else [cache]
        return [tensor.view(self._torch.uint8) for tensor in tensors]

    def share_blocks(self, *, owner: int, other: int, count: int = 1) -> None:
        """Give both the same first ``count`` blocks, and the tokens in them."""
        lengths = (len(self.keys[each]) for each in (owner, other))
        size = min(count * self.layer.block_size, *lengths)
        self._shared[other] = (owner, size)
        self.tables[other, :count] = self.tables[owner, :count]
        self.keys[other][:size] = self.keys[owner][:size]
        self.values[other][:size] = self.values[owner][:size]

    def side_by_side(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Return slices of one tensor, as a fused projection does."""
        heads = [part.shape[1] for part in (query, key, value)]
        first, second, third = self._torch.cat([query, key, value], dim=1).split(heads, dim=1)
        return first, second, third

    def values_aside(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Return contiguous queries and keys, and values that are a slice of a fused projection,
        as after a rotary embedding that is not computed in place."""
        return query, key, self.side_by_side(query, key, value)[2]

    def heads_first(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Return tensors in which the tokens of a head are contiguous."""
        first, second, third = (
            part.transpose(0, 1).contiguous().transpose(0, 1) for part in (query, key, value)
        )
        return first, second, third

    def _new(self, members: Sequence[int]) -> _Rows:
        return [(index, *self.chunks[index], self.queries[index]) for index in members]

    def _plan(self, rows: _Rows) -> Any:
        self.batch = self._batch(rows)
        return self.backend.plan(self.batch)

    def _batch(self, rows: _Rows) -> AttentionBatch:
        tables = self.tables[[index for index, *_ in rows]].numpy().astype(np.int32)
        if not np.array_equal(tables, self._last_tables):
            self._last_tables = tables  # of equal ones an executor hands over one array
        return attention_batch(
            self._last_tables,
            [(cached, new) for _, cached, new, _ in rows],
            self.layer.block_size,
            self.layer.device,
        )

    def _inputs(self, rows: _Rows) -> tuple[Any, Any, Any]:
        query = self._torch.cat([part for *_, part in rows])
        key, value = (
            self._torch.cat([kept[index][cached : cached + new] for index, cached, new, _ in rows])
            for kept in (self.keys, self.values)
        )
        return query, key, value

    # ------------------------------------------------------------------ expected result

    def expected(self, index: int) -> NDArray[np.float64]:
        """Dense attention of a sequence's new tokens, [Q, heads, D], head by head."""
        layer = self.layer
        length = sum(self.chunks[index])
        query, keys, values = (
            part.double().cpu().numpy()
            for part in (
                self.queries[index],
                self.keys[index][:length],
                self.values[index][:length],
            )
        )
        out = np.zeros(query.shape)
        group = layer.num_heads // layer.num_kv_heads
        for row in range(len(query)):
            position = len(keys) - len(query) + row
            first = 0 if layer.sliding_window is None else position + 1 - layer.sliding_window
            seen = slice(max(0, first), position + 1)
            distance = position - np.arange(seen.start, seen.stop)
            for head in range(layer.num_heads):
                scores = keys[seen, head // group] @ query[row, head] * layer.scale
                if layer.soft_cap is not None:
                    scores = layer.soft_cap * np.tanh(scores / layer.soft_cap)
                if layer.alibi_slopes is not None:
                    scores = scores - layer.alibi_slopes[head] * distance
                sink = -np.inf if layer.sinks is None else layer.sinks[head]
                top = max(scores.max(), sink)
                weights = np.exp(scores - top)
                total = weights.sum() + np.exp(sink - top)
                out[row, head] = weights / total @ values[seen, head // group]
        return out


def walk(scenes: Sequence[Scene]) -> Iterator[list[int]]:
    """Yield the members of steps that follow each other in scenes of six sequences.

    Most sequences grow by a token each. Before a step members change places, one makes place for
    another of its length, begins anew, forks, leaves or has a block copied, or nothing happens.
    """
    drawn, members, lengths = Random(2), [0, 1, 2, 3], [9, 9, 10, 13, 9, 20]
    for scene in scenes:
        scene.write_cached(range(6))
    for step in range(20):
        one, new = drawn.choice(members), 1
        other = drawn.choice([each for each in range(6) if each not in members])
        if step % 7 == 1:
            drawn.shuffle(members)
        elif step % 7 == 2:
            lengths[other] = lengths[one]
            members[members.index(one)] = other
        elif step % 7 == 3:
            for scene in scenes:
                scene.move_block(one, drawn.randrange(lengths[one] // 4))
        elif step % 7 == 4:
            for scene in scenes:
                scene.share_blocks(owner=one, other=other, count=lengths[one] // 4)
            lengths[other] = lengths[one]
            members = [*members[1:], other]
        elif step % 7 == 5:
            lengths[one], new = 4, 5
        elif step % 7 == 6:
            members = members[::-1][: 3 + step % 2]
        for index in members:
            for scene in scenes:
                scene.go_on(index, lengths[index], new if index == one else 1)
            lengths[index] += new if index == one else 1
        yield members


def _exact_in_float8(torch: Any, rows: Any) -> Any:
    """Round to 4 significant bits, which a cache in float8 holds exactly."""
    mantissa, exponent = torch.frexp(rows.float())
    return torch.ldexp((mantissa * 16).round() / 16, exponent).to(rows.dtype)


def _exact_in_int8(torch: Any, rows: Any) -> Any:
    """Round each row to multiples of a power of two, of which its greatest number becomes 127."""
    exact = rows.float()
    greatest, place = exact.abs().max(-1, keepdim=True)
    step = torch.exp2((greatest / 127).log2().ceil())
    codes = (exact / step).round()
    codes.scatter_(-1, place, 127.0).copysign_(exact)
    return (codes * step).to(rows.dtype)


_EXACT: dict[KVCacheDtype, Callable[[Any, Any], Any]] = {
    "fp8_e4m3": _exact_in_float8,
    "int8": _exact_in_int8,
}
"""Rounds rows to numbers that a cache of this ``kv_cache_dtype`` holds exactly."""
