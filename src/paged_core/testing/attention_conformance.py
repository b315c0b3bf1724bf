"""The contract of attention components, compared with dense attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import strategies as st

from paged_core.interfaces.attention import (
    AttentionBackend,
    AttentionParts,
    SupportsCacheLayout,
)
from paged_core.interfaces.layer import LayerSpec
from paged_core.settings import EngineSettings
from paged_core.testing.attention_scene import Scene
from paged_core.testing.component_conformance import ComponentConformance

Chunks = list[tuple[int, int]]
"""For each sequence, how many of its tokens are cached and how many are new."""

LONG: Chunks = [(700, 1), (0, 150), (130, 70), (5, 1), (255, 1), (256, 1)]


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 128},
    "odd": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 80, "block_size": 5},
    "window": {"sliding_window": 100},
    "cap and alibi": {"soft_cap": 3.0, "alibi_slopes": (0.5, 0.1, 0.01, 0.0)},
}
"""Changes to a small layer."""


class AttentionConformance(ComponentConformance):
    """Subclass it for an attention component::

        class TestMyAttention(AttentionConformance):
            component = "my_attention"
            dtypes = ("bfloat16",)

    Memory that no sequence owns is NaN, so that reading any of it shows.
    """

    slot: ClassVar[str] = "attention"
    dtypes: ClassVar[Sequence[str]] = ("float32", "bfloat16")
    """Types of the cache that it serves."""
    device: ClassVar[str] = "cpu"
    tolerance: ClassVar[dict[str, float]] = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
    """Absolute and relative, by type."""
    head_dims: ClassVar[Sequence[int]] = (1, 6, 16, 33, 64, 96, 128)
    keeps_bits: ClassVar[bool] = False
    """Whether a sequence's result is bit-identical whatever else is in the batch."""
    deterministic: ClassVar[bool] = False
    """The setting of that name."""

    def make(self) -> AttentionBackend:
        """A fresh component; the test is skipped where it cannot serve."""
        reason = self.record.obstacle()
        if reason:
            pytest.skip(reason)
        settings = EngineSettings(deterministic=self.deterministic)
        made = self.build(AttentionParts(settings=settings))
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
        )
        return replace(layer, **changes)

    def layers(self) -> st.SearchStrategy[LayerSpec]:
        """Layers of any shape, with anything that a :class:`LayerSpec` may have."""
        return st.builds(
            lambda dtype, kv, group, dim, window, cap, alibi, size: self.layer(
                dtype,
                num_heads=kv * group,
                num_kv_heads=kv,
                head_dim=dim,
                scale=dim**-0.5,
                block_size=size,
                sliding_window=window,
                soft_cap=cap,
                alibi_slopes=tuple(0.5 / (i + 1) for i in range(kv * group)) if alibi else None,
            ),
            st.sampled_from(list(self.dtypes)),
            st.integers(1, 3),
            st.sampled_from([1, 2, 3, 4, 5, 8]),
            st.sampled_from(list(self.head_dims)),
            st.none() | st.integers(1, 9) | st.integers(30, 150),
            st.none() | st.sampled_from([0.5, 5.0, 50.0]),
            st.booleans(),
            st.sampled_from([1, 2, 3, 4, 8, 16, 32]),
        )

    def check_outputs(self, scene: Scene, outputs: Sequence[Any], members: Sequence[int]) -> None:
        """Compare with dense attention."""
        bound = self.tolerance[scene.layer.dtype]
        for index, out in zip(members, outputs, strict=True):
            np.testing.assert_allclose(
                out.double().numpy(), scene.expected(index), atol=bound, rtol=bound
            )

    # ------------------------------------------------------------------ results

    def test_equals_dense_attention(self) -> None:
        backend = self.make()

        def equals(layer: LayerSpec, chunks: Chunks, seed: int) -> None:
            scene = Scene(backend, layer, chunks, seed)
            members = list(range(len(chunks)))
            self.check_outputs(scene, scene.run(members), members)

        lengths = st.tuples(st.integers(0, 40), st.just(1) | st.integers(1, 12))
        self.check(
            equals, self.layers(), st.lists(lengths, min_size=1, max_size=5), st.integers(0, 2**16)
        )

    @pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
    def test_equals_dense_attention_on_long_sequences(self, changes: dict[str, Any]) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            scene = Scene(backend, self.layer(dtype, **changes), LONG, 7)
            members = list(range(len(LONG)))
            self.check_outputs(scene, scene.run(members), members)

    def test_rows_may_be_strided(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            scene = Scene(backend, self.layer(dtype), [(20, 1), (3, 9)], 1)
            fused = scene.run([0, 1], arrange=scene.side_by_side)
            scene = Scene(backend, self.layer(dtype), [(20, 1), (3, 9)], 1)
            self.check_outputs(scene, fused, [0, 1])
            self.check_outputs(scene, scene.run([0, 1], arrange=scene.heads_first), [0, 1])

    def test_a_batch_is_written_before_any_of_it_is_read(self) -> None:
        """A block that one sequence fills in this step, another reads in the same."""
        backend = self.make()
        for dtype in self.dtypes:
            layer = self.layer(dtype)
            scene = Scene(backend, layer, [(0, 40), (16, 24)], 2)
            scene.share_blocks(owner=0, other=1)
            # the other comes first in the batch, so that order does not help
            outputs = scene.run([1, 0], write_cached=False)
            self.check_outputs(scene, outputs, [1, 0])

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
            scene = Scene(backend, layer, chunks, 8)
            for other in range(1, 18):
                scene.share_blocks(owner=0, other=other, count=40 if other != 7 else 33)
            for other in (19, 20):
                scene.share_blocks(owner=18, other=other, count=25)
            scene.share_blocks(owner=0, other=22, count=20)
            members = list(range(len(chunks)))
            self.check_outputs(scene, scene.run(members), members)

    # ------------------------------------------------------------------ the cache

    def test_writes_the_slots_of_the_batch_and_no_other(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            layer = self.layer(dtype, block_size=4)
            scene = Scene(backend, layer, [(5, 1), (0, 6)], 3)
            unused = scene.unused_blocks()
            scene.run([0, 1])
            assert scene.unused_blocks() == unused
            if not isinstance(backend, SupportsCacheLayout):
                written = int((~scene.cache.isnan()).sum())
                assert written == (6 + 6) * 2 * layer.num_kv_heads * layer.head_dim

    def test_blocks_can_be_copied(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            scene = Scene(backend, self.layer(dtype), [(30, 1), (17, 5)], 4)
            scene.write_cached([0, 1])
            scene.move_blocks()
            self.check_outputs(scene, scene.run([0, 1], write_cached=False), [0, 1])

    def test_blocks_can_be_swapped(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            scene = Scene(backend, self.layer(dtype), [(30, 1), (17, 5)], 4)
            scene.write_cached([0, 1])
            scene.swap_blocks()
            self.check_outputs(scene, scene.run([0, 1], write_cached=False), [0, 1])

    def test_its_layout_counts_blocks(self) -> None:
        backend = self.make()
        layer = self.layer(self.dtypes[0])
        if isinstance(backend, SupportsCacheLayout):
            assert backend.block_bytes(layer) >= layer.block_size * layer.bytes_per_token // 8
        else:
            assert backend.cache_shape(layer, 7)[backend.block_dim()] == 7

    # ------------------------------------------------------------------ independence

    def test_a_result_hardly_depends_on_the_rest_of_the_batch(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            layer = self.layer(dtype)
            together = Scene(backend, layer, LONG, 5).run(list(range(len(LONG))))
            for index, out in enumerate(together):
                (alone,) = Scene(backend, layer, LONG, 5).run([index])
                bound = 0.0 if self.keeps_bits else self.tolerance[dtype]
                np.testing.assert_allclose(
                    out.double().numpy(), alone.double().numpy(), atol=bound, rtol=bound
                )

    def test_the_same_batch_gives_the_same_bits(self) -> None:
        backend = self.make()
        torch: Any = import_module("torch")
        for dtype in self.dtypes:
            runs = [
                Scene(backend, self.layer(dtype), LONG, 6).run(list(range(len(LONG))))
                for _ in range(2)
            ]
            for first, second in zip(*runs, strict=True):
                assert torch.equal(first, second)

    def test_nan_in_a_sequence_spoils_no_other(self) -> None:
        backend = self.make()
        for dtype in self.dtypes:
            scene = Scene(backend, self.layer(dtype), [(30, 1), (20, 1), (0, 30)], 8)
            scene.values[0][:] = float("nan")
            scene.keys[0][:] = float("inf")
            outputs = scene.run([0, 1, 2])
            assert outputs[0].isnan().all()
            self.check_outputs(scene, outputs[1:], [1, 2])

    # ------------------------------------------------------------------ refusals

    def test_says_what_it_cannot_serve(self) -> None:
        backend = self.make()
        layer = self.layer(self.dtypes[0])
        assert backend.check(layer) is None
        assert isinstance(backend.check(replace(layer, num_kv_heads=3)), str)
        assert isinstance(backend.check(replace(layer, alibi_slopes=(1.0,))), str)
