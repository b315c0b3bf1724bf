"""Conformance of attention components, compared with dense attention in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product, starmap
from typing import Any, ClassVar, get_args

import numpy as np
import pytest

from paged_core.engine.contexts import AttentionContext
from paged_core.interfaces.attention import (
    AttentionBackend,
    HeadPreparation,
    SupportsBlockCopies,
    SupportsCacheLayout,
    SupportsHeadPreparation,
)
from paged_core.interfaces.layer import KVCacheDtype, LayerSpec
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import Scene, numbers, unreadable, walk
from paged_testing.component import ComponentConformance
from paged_testing.runner_scene import prepared

Chunks = list[tuple[int, int]]
"""For each sequence, how many of its tokens are cached and how many are new."""

SHORT: Sequence[Chunks] = (
    [(0, 1)],
    [(1, 1)],
    [(3, 1), (4, 1), (5, 1)],
    [(0, 4), (0, 5), (0, 3)],
    [(15, 1), (16, 1), (17, 1), (16, 16)],
    [(2, 3), (8, 8), (0, 17)],
)
"""At the edges of blocks."""

_OF_OPTIONS: Chunks = [(300, 1), (0, 90), (37, 23), (5, 1), (0, 1)]
"""Chunks of a step that each of many options is tried with."""
LONG: Chunks = [(700, 1), (0, 150), (130, 70), (5, 1), (255, 1), (256, 1), (0, 1)]


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 128},
    "odd": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 80, "block_size": 5},
    "window": {"sliding_window": 100},
    "cap and alibi": {"soft_cap": 3.0, "alibi_slopes": (0.5, 0.1, 0.01, 0.0)},
    "sinks": {"sinks": (3.0, -2.0, 0.0, 100.0)},
    "sinks and the others": {
        "sinks": (0.5, 2.0, 4.0, -30.0),
        "sliding_window": 100,
        "soft_cap": 3.0,
        "alibi_slopes": (0.5, 0.1, 0.01, 0.0),
    },
}
"""Changes to a small layer."""


_HEADS = ((1, 1), (4, 1), (6, 3), (5, 5), (8, 2), (24, 1))
_KINDS: Sequence[dict[str, Any]] = (
    {},
    {"sliding_window": 3},
    {"sliding_window": 5},
    {"scale": 0.5},
    {"soft_cap": 3.0},
    {"soft_cap": 1.0},
    {"num_heads": 2, "num_kv_heads": 1},
    {"num_kv_heads": 4},
    {"head_dim": 128},
    *({"alibi_slopes": slopes} for slopes in ((0.5, 0.1, 0.01, 0.0), (0.0, 1.0, 0.3, 0.2))),
    *({"sinks": sinks} for sinks in ((3.0, -2.0, 0.0, 9.0), (0.0, 5.0, 1.0, -1.0))),
    {},
)
"""Changes to layers that share a plan."""
_ALIKE = (
    *((0, 1), (1, 0), (1, 2), (1, 3), (0, 1), (3, 1)),
    *((4, 0, 3), (4, 5, 6), (4, 3, 0), (6, 5, 4)),
)
"""Sequences of batches that follow each other."""
_MOST_LENGTH = 701
"""Twice as many as there are uses of a layer, and a prime number: no length comes again."""


@dataclass(frozen=True, slots=True)
class _Preparing:
    """Attends with heads that the layer prepares."""

    bound: SupportsHeadPreparation
    query: Any
    key: Any
    how: HeadPreparation

    def forward(self, query: Any, key: Any, value: Any, plan: Any, /) -> Any:
        heads = self.query.clone(), self.key.clone()
        return self.bound.prepare_and_forward(*heads, value, plan, self.how)


class AttentionConformance(ComponentConformance):
    """Subclass it for an attention component::

        class TestMyAttention(AttentionConformance):
            component = "my_attention"
            dtypes = ("bfloat16",)

    Memory that no sequence owns is NaN, so that reading any of it shows.
    """

    slot: ClassVar[str] = "attention"
    head_dims: ClassVar[Sequence[int]] = (1, 6, 16, 33, 64, 80, 96, 128, 256)
    """Sizes of a head that it serves."""
    dtypes: ClassVar[Sequence[str]] = ("float32", "bfloat16")
    """Types of the cache that it serves."""
    max_seconds: ClassVar[float] = 200
    """Seconds of a test: kernels may have to be compiled."""
    device: ClassVar[str] = "cpu"
    kv_cache_dtype: ClassVar[KVCacheDtype] = "auto"
    block_multiple: ClassVar[int] = 1
    """The blocks of all cases are made multiples of this, for a component that serves no others."""
    tolerance: ClassVar[dict[str, float]] = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
    """Absolute and relative, by type."""
    keeps_bits: ClassVar[bool] = False
    """True where a sequence's result is bit-identical whatever else is in the batch."""
    deterministic: ClassVar[bool] = False
    """The setting of that name."""

    def make(self) -> AttentionBackend:
        """A fresh component; the test is skipped where it cannot serve."""
        reason = self.refusal()
        if reason:
            pytest.skip(reason)
        settings = EngineSettings(deterministic=self.deterministic)
        made = self.build(AttentionContext(settings=settings, registry=self.registry))
        assert isinstance(made, AttentionBackend)
        reason = made.check(self.layer(self.dtypes[0]))
        if reason:
            pytest.skip(reason)
        return made

    def layer(self, dtype: str, **changes: Any) -> LayerSpec:
        """A small layer."""
        layer = LayerSpec(
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            scale=0.125,
            dtype=dtype,
            device=self.device,
            block_size=16,
            kv_cache_dtype=self.kv_cache_dtype,
        )
        layer = replace(layer, **changes)
        return replace(
            layer, block_size=-(-layer.block_size // self.block_multiple) * self.block_multiple
        )

    def scene(
        self, backend: AttentionBackend, layer: LayerSpec, chunks: Chunks, seed: int
    ) -> Scene:
        """A scene; the test is skipped if the component does not serve the layer."""
        reason = backend.check(layer)
        if reason:
            pytest.skip(f"{layer}: {reason}")
        return Scene(backend, layer, chunks, seed)

    def check_outputs(self, scene: Scene, outputs: Sequence[Any], members: Sequence[int]) -> None:
        """Compare with dense attention."""
        bound = self.tolerance[scene.layer.dtype]
        for index, out in zip(members, outputs, strict=True):
            wanted, got = scene.expected(index), out.double().numpy()
            wrong = ~(np.abs(got - wanted) <= bound + bound * np.abs(wanted))
            place = tuple(int(at) for at in np.unravel_index(wrong.argmax(), wrong.shape))
            cached, new = scene.chunks[index]
            assert not wrong.any(), (
                f"sequence {index} ({cached} tokens cached, {new} new): {wrong.sum()} of "
                f"{wrong.size} values are wrong; the first, of new token {place[0]}, head "
                f"{place[1]}, place {place[2]}, is {got[place]:.6g}, not {wanted[place]:.6g}, in "
                f"{scene.layer}"
            )

    def scenes(
        self, chunks: Chunks, seed: int, backend: AttentionBackend | None = None, **changes: Any
    ) -> Iterator[Scene]:
        """A scene of a small layer, with these changes, for each dtype."""
        backend = backend or self.make()
        for dtype in self.dtypes:
            yield self.scene(backend, self.layer(dtype, **changes), chunks, seed)

    def check_run(self, scene: Scene, members: Sequence[int] | None = None, **how: Any) -> None:
        """Run the sequences of a scene, and compare with dense attention."""
        members = range(len(scene.chunks)) if members is None else members
        self.check_outputs(scene, scene.run(members, **how), members)

    num_uses: ClassVar[int] = 60

    def uses(self) -> Callable[[int], object]:
        """A step of other lengths, with a plan of its own, by a layer that stays."""
        scene = next(self.scenes([(_MOST_LENGTH + 8, 1), (_MOST_LENGTH, 9)], 21))
        queries = scene.queries[1]
        scene.write_cached([0, 1])

        def use(number: int) -> None:
            one, other = (9 + (2 * number + more) * 89 % _MOST_LENGTH for more in (0, 1))
            new = 1 + number % 9
            scene.queries[1] = queries[:new]
            scene.chunks = [(one - 1, 1), (other - new, new)]
            scene.move_blocks(1 + number)  # no table comes again
            scene.run([number % 2, 1 - number % 2], write_cached=False)

        return use

    def check_written(self) -> None:
        super().check_written()
        for changes in ({}, {"sliding_window": 30}, SHAPES["sinks and the others"]):
            with suppress(pytest.skip.Exception):
                layer = self.layer(self.dtypes[0], **changes)
                self.check_run(self.scene(self.make(), layer, _OF_OPTIONS, 27))

    # ------------------------------------------------------------------ results

    @pytest.mark.parametrize("chunks", SHORT, ids=str)
    def test_equals_dense_attention_on_short_sequences(self, chunks: Chunks) -> None:
        """One token, one block, the edges of blocks, a whole prompt and chunks of one."""
        for size in (1, 4):
            for scene in self.scenes(chunks, 9, block_size=size):
                self.check_run(scene)

    def test_heads_of_any_dimension_and_number(self) -> None:
        """And blocks that are larger than what kernels read at a time."""
        backend, chunks = self.make(), [(20, 1), (400, 1), (0, 19)]
        for place in range(max(len(_HEADS), len(self.head_dims))):
            num_heads, num_kv_heads = _HEADS[place % len(_HEADS)]
            changes = {
                "num_heads": num_heads,
                "num_kv_heads": num_kv_heads,
                "head_dim": self.head_dims[place % len(self.head_dims)],
                "block_size": (3, 300)[place % 2],
            }
            for scene in self.scenes(chunks, 26, backend, **changes):
                self.check_run(scene)

    @pytest.mark.parametrize("window", [1, 2, 4, 5, 16, 17])
    def test_sees_no_further_than_the_sliding_window(self, window: int) -> None:
        chunks = [(20, 1), (0, 19), (7, 9), (3, 1)]
        for scene in self.scenes(chunks, 11, block_size=4, sliding_window=window):
            self.check_run(scene)

    def test_the_sliding_window_may_begin_anywhere(self) -> None:
        """At, before and after places where kernels begin a tile, for many tokens and for one."""
        chunks = [(133, 128), (261, 128), *((cached, 1) for cached in (162, 163, 164, 291))]
        for scene in self.scenes(chunks, 16, num_heads=1, num_kv_heads=1, sliding_window=100):
            self.check_run(scene)

    def test_layers_of_different_kinds_share_a_plan(self) -> None:
        torch: Any = import_module("torch")
        backend, chunks, members = self.make(), [(20, 1), (0, 9), (7, 5)], [0, 1, 2]
        for dtype in self.dtypes:
            layers = [self.layer(dtype, **{"block_size": 4, **each}) for each in _KINDS]
            served = [layer for layer in layers if backend.check(layer) is None]
            scenes = [self.scene(backend, layer, chunks, 17) for layer in served]
            for scene in scenes:
                scene.write_cached(members)
            plan = scenes[0].plan(members)
            results = list[tuple[Any, Any]]()
            for scene in scenes:
                self.check_run(scene, write_cached=False, plan=plan)
                results.append((scene.result, scene.result.clone()))
            assert all(starmap(torch.equal, results)), "a later call changed an earlier result"

    def test_a_cache_of_more_than_2_31_numbers(self) -> None:
        """Blocks at the end of a cache whose numbers cannot be counted in 32 bits."""
        backend = self.make()
        if isinstance(backend, SupportsCacheLayout):
            pytest.skip("it has a cache layout of its own")
        for dtype in self.dtypes:
            layer = self.layer(dtype, num_heads=1, num_kv_heads=1)
            block = 2 * layer.block_size * layer.head_dim
            scene = Scene(backend, layer, [(40, 1), (17, 5)], 19, first_block=(1 << 31) // block)
            self.check_run(scene)

    def test_steps_follow_each_other_as_in_an_engine(self) -> None:
        """Sequences grow together, change places, come and go, fork and get other blocks, in two
        engines; what a step was given and what it gave stay as they are."""
        for dtype in self.dtypes:
            layer = self.layer(dtype, block_size=4)
            scenes = [self.scene(self.make(), layer, [(47, 1)] * 6, seed) for seed in (18, 19)]
            for members in walk(scenes):
                plans = [scene.plan(members) for scene in scenes]
                for scene, plan in zip(scenes, plans, strict=True):
                    self.check_run(scene, members, write_cached=False, plan=plan)
                    wanted = numbers(scene.batch_of(members))
                    assert numbers(scene.batch) == wanted, "it changed the batch"

    def test_batches_that_differ_in_one_thing_follow_each_other(self) -> None:
        """In the order of lengths, in tables, in what is cached, or in numbers alone: each has as
        many sequences and tokens as the one before it, and most as long ones; then other sequences
        have the same blocks."""
        chunks = [(9, 1), (7, 3), (9, 1), (5, 1), (15, 1), (7, 1), (7, 1)]
        for scene in self.scenes(chunks, 25):
            scene.share_blocks(owner=0, other=3)  # of one table, and other lengths
            scene.write_cached(range(len(chunks)))
            for members in _ALIKE:
                self.check_run(scene, members, write_cached=False)
            for first in (-1, 0):  # of the new token, then of all
                for index in _ALIKE[-1]:
                    scene.queries[index].neg_()
                    scene.keys[index][first:].neg_()
                    scene.values[index][first:].neg_()
                self.check_run(scene, _ALIKE[-1], write_cached=first == 0)

    @pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
    def test_equals_dense_attention_on_long_sequences(self, changes: dict[str, Any]) -> None:
        for scene in self.scenes(LONG, 7, **changes):
            self.check_run(scene)

    @pytest.mark.parametrize("window", [None, 7])
    def test_many_new_tokens_of_a_sequence(self, window: int | None) -> None:
        """More than kernels compute at a time, of which some see nothing of what others see."""
        changes: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "sliding_window": window}
        for scene in self.scenes([(0, 1100), (130, 300)], 23, **changes):
            self.check_run(scene)
            scene.values[0].neg_()
            self.check_run(scene, write_cached=False)

    @pytest.mark.parametrize("changes", [{}, {"sliding_window": 7}, {"soft_cap": 100.0}], ids=str)
    def test_scores_may_be_far_from_zero(self, changes: dict[str, Any]) -> None:
        """Far below and far above, and equal: a result is the mean of the values that are seen."""
        for scene in self.scenes([(20, 1), (0, 19), (40, 3), (0, 9)], 24, **changes):
            for number, queries in enumerate(scene.queries):
                keys = scene.keys[number]
                queries.zero_()[..., 0], keys.zero_()[..., 0] = 1024, (-1024, 1024)[number // 2]
            self.check_run(scene)

    def test_rows_may_be_strided(self) -> None:
        """Rows of chunks, and of steps that decode alone."""
        for scene in self.scenes([(20, 1), (3, 9), (2, 1)], 1):
            for arrange in (scene.side_by_side, scene.heads_first, scene.values_aside):
                for members in ([0, 1], [2, 0]):
                    scene.values[members[1]].neg_()
                    self.check_run(scene, members, arrange=arrange)

    def test_a_batch_is_written_before_any_of_it_is_read(self) -> None:
        """A block that one sequence fills in this step, another reads in the same."""
        for scene in self.scenes([(0, 40), (16, 24)], 2):
            scene.share_blocks(owner=0, other=1)
            # the other comes first in the batch, so that order does not help
            self.check_run(scene, [1, 0], write_cached=False)

    @pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
    def test_sequences_may_begin_with_the_same_blocks(self, changes: dict[str, Any]) -> None:
        """18 sequences with a common prefix, one with a shorter one, 3 with another, 3 others."""
        backend = self.make()
        for dtype in self.dtypes:
            layer = self.layer(dtype, **changes)
            size = layer.block_size
            chunks = [(40 * size + extra % (3 * size), 1) for extra in range(18)]
            chunks += [(25 * size + extra, 1) for extra in (0, 3, 2 * size)]
            chunks += [(300, 1), (21 * size, 6), (3, 1)]
            scene = self.scene(backend, layer, chunks, 8)
            for other in range(1, 18):
                scene.share_blocks(owner=0, other=other, count=40 if other != 7 else 33)
            for other in (19, 20):
                scene.share_blocks(owner=18, other=other, count=25)
            scene.share_blocks(owner=0, other=22, count=20)
            self.check_run(scene)

    def test_more_tokens_than_a_dimension_of_a_grid_may_have(self) -> None:
        """66,000 tokens that each see themselves alone, of one sequence and of as many."""
        if self.device == "cpu":
            pytest.skip("a CPU has no grid, and may compute all scores of a sequence")
        backend, count = self.make(), 66_000
        layer = self.layer(
            self.dtypes[0], num_heads=1, num_kv_heads=1, sliding_window=1, block_size=1
        )
        batches: list[Chunks] = [[(0, count)]]
        if layer.block_size == 1:  # else as many sequences would need gigabytes
            batches.append([(0, 1)] * count)
        for chunks in batches:
            scene = self.scene(backend, layer, chunks, 14)
            outputs = scene.run(range(len(chunks)))
            for index in (0, len(chunks) // 2, len(chunks) - 1):
                wanted = scene.values[index].cpu().float()
                np.testing.assert_allclose(outputs[index].float(), wanted, atol=1e-4)

    def test_a_sequence_of_several_thousand_blocks(self) -> None:
        shape: dict[str, Any] = {"num_heads": 2, "num_kv_heads": 1, "block_size": 4}
        backend, chunks = self.make(), [(20_001, 1), (3, 1), (9_000, 3)]
        for scene in self.scenes(chunks, 15, backend, **shape):
            self.check_run(scene)
        for more in ({"alibi_slopes": (0.001, 0.0001)}, {"sliding_window": 5_000}):
            layer = self.layer(self.dtypes[0], **{**shape, **more})
            if backend.check(layer) is None:
                self.check_run(self.scene(backend, layer, chunks, 15))

    # ------------------------------------------------------------------ the cache

    def test_writes_the_slots_of_the_batch_and_no_other(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            layer = self.layer(dtype, block_size=4)
            scene = self.scene(backend, layer, [(5, 1), (0, 6)], 3)
            unused = scene.unused_blocks()
            scene.run([0, 1])
            assert scene.unused_blocks() == unused
            if not isinstance(backend, SupportsCacheLayout) and self.kv_cache_dtype == "auto":
                written = int((~scene.cache.isnan()).sum())
                assert written == (6 + 6) * 2 * layer.num_kv_heads * layer.head_dim

    def test_blocks_can_be_copied_and_swapped(self) -> None:
        for scene in self.scenes([(30, 1), (17, 5)], 4):
            self.check_run(scene)
            for distance in (1, -1):  # one of them overwrites, block by block, what is to be read
                scene.move_blocks(distance)
                self.check_run(scene, write_cached=False)  # of the same lengths, in other blocks
            scene.swap_blocks()
            self.check_run(scene, write_cached=False)

    def test_blocks_of_several_layers_are_copied_at_once(self) -> None:
        """To other blocks, and in a circle, where each is read before it is overwritten."""
        backend = self.make()
        if not isinstance(backend, SupportsBlockCopies):
            pytest.skip("it does not implement SupportsBlockCopies")
        assert backend.block_dim() == 0, (
            "copy_blocks_of_layers() is for caches of which the first dimension counts blocks: "
            f"block_dim() is {backend.block_dim()}"
        )
        torch: Any = import_module("torch")
        for dtype in self.dtypes:
            layer = self.layer(dtype, block_size=5)
            backend.bind(layer, Scene(backend, layer, [(0, 1)], 0).cache)
            shape = (3, *backend.cache_shape(layer, 9))
            stored = getattr(torch, dtype) if layer.kv_cache_dtype == "auto" else torch.uint8
            caches = torch.arange(np.prod(shape)).remainder(251).view(shape)
            caches = caches.to(layer.device, stored)
            for origins, destinations in (([0, 5, 5], [3, 8, 1]), ([1, 2, 3, 8], [2, 3, 8, 1])):
                expected = caches.clone()
                expected[:, destinations] = caches[:, origins]
                backend.copy_blocks_of_layers(caches, origins, destinations)
                assert torch.equal(caches, expected)

    def test_heads_are_prepared_as_described(self) -> None:
        """Norms and the rotary embedding, where a bound layer prepares heads itself."""
        chunks = [(20, 1), (0, 6), (3, 1)]
        for without in ((), ("query_norm", "key_norm"), ("cos", "sin")):
            for scene in self.scenes(chunks, 6):
                self._check_prepared(scene, dict.fromkeys(without))

    def _check_prepared(self, scene: Scene, without: dict[str, Any]) -> None:
        torch: Any = import_module("torch")
        layer, bound = scene.layer, scene._attention
        if layer.kv_cache_dtype != "auto" or not isinstance(bound, SupportsHeadPreparation):
            pytest.skip("it does not implement SupportsHeadPreparation, or rounds keys")
        query, key, _ = scene.inputs(range(3))
        random = torch.rand(8, 1, layer.head_dim).to(query)
        angles = (3 * random[:, 0, ::2]).float()
        how = HeadPreparation(
            query_norm=random[0, 0],
            key_norm=random[1, 0],
            eps=1e-5,
            offset=0.5,
            cos=angles.cos(),
            sin=angles.sin(),
        )
        how = replace(how, **without)
        scene.queries = list(prepared(query, how.query_norm, how).split([1, 6, 1]))
        rows = prepared(key, how.key_norm, how).split([1, 6, 1])
        for kept, new in zip(scene.keys, rows, strict=True):
            kept[-len(new) :] = new
        scene._attention = _Preparing(bound, query, key, how)
        self.check_run(scene)

    def test_its_layout_counts_blocks(self) -> None:
        backend = self.make()
        layer = self.layer(self.dtypes[0])
        if isinstance(backend, SupportsCacheLayout):
            assert backend.block_bytes(layer) >= layer.block_size * layer.bytes_per_token // 8
        else:
            assert backend.cache_shape(layer, 7)[backend.block_dim()] == 7

    # ------------------------------------------------------------------ independence

    def test_results_do_not_depend_on_the_batch(self) -> None:
        """In any bit: with ``deterministic: true``, unless ``check`` refuses it, and without it
        where the class says that it keeps bits."""
        torch: Any = import_module("torch")
        cached = (130, 139, 149, 254, 132, 33, 700)
        chunks = [*((each, 1) for each in cached), (9, 5), (0, 12), (0, 150)]
        promises = {"with deterministic: true": self.variant(deterministic=True)}
        if self.keeps_bits:
            promises["in a class with keeps_bits"] = self
        for (said, cases), dtype in product(promises.items(), self.dtypes):
            backend, layer = cases.make(), self.layer(dtype)
            if backend.check(layer) is not None:
                continue
            scene = self.scene(backend, layer, chunks, 5)
            scene.share_blocks(owner=0, other=1, count=8)
            for index, out in enumerate(scene.run(range(len(chunks)))):
                (alone,) = scene.run([index])
                assert torch.equal(out, alone), (
                    f"{said} a sequence of (cached, new) tokens {chunks[index]} has results in "
                    f"{dtype} that differ by {float((out.double() - alone.double()).abs().max())} "
                    "from those that it has alone: check() refuses what depends on the batch"
                )

    def test_planning_waits_for_no_device(self) -> None:
        """Where it serves GPUs, to which a CPU's tensors only stand in for theirs."""
        backend = self.make()
        layer = self.layer(self.dtypes[0])
        if reason := backend.check(replace(layer, device="cuda")):
            pytest.skip(reason)
        scene = self.scene(backend, layer, LONG, 7)
        backend.plan(unreadable(scene.batch_of(range(len(LONG)))))

    def test_nan_in_a_sequence_spoils_no_other(self) -> None:
        for scene in self.scenes([(30, 1), (20, 1), (0, 30)], 8):
            scene.values[0][:] = float("nan")
            scene.keys[0][:] = float("inf")
            outputs = scene.run([0, 1, 2])
            assert outputs[0].isnan().all()
            self.check_outputs(scene, outputs[1:], [1, 2])

    # ------------------------------------------------------------------ refusals

    def test_serves_whatever_its_check_passes(self) -> None:
        """Types that the class does not name, too."""
        backend, layer = self.make(), self.layer(self.dtypes[0], block_size=4)
        others = [replace(layer, dtype=name) for name in self.tolerance]
        others += [replace(layer, kv_cache_dtype=name) for name in get_args(KVCacheDtype)]
        for other in others:
            if backend.check(other) is None:
                self.check_run(Scene(backend, other, [(20, 1), (0, 9)], 22))

    def test_says_what_it_cannot_serve(self) -> None:
        backend = self.make()
        layer = self.layer(self.dtypes[0])
        assert backend.check(layer) is None
        cases: list[dict[str, Any]] = [{"num_kv_heads": count} for count in (3, 8)]
        cases += [{of: (1.0,) * n} for of in ("alibi_slopes", "sinks") for n in (0, 1, 5, 8)]
        for wrong in cases:
            reason = backend.check(replace(layer, **wrong))
            assert isinstance(reason, str), (
                f"check() returns {reason} for {layer.num_heads} heads with {wrong}: return why "
                "they do not fit"
            )
