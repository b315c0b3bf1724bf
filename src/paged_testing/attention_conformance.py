"""The contract of attention components, compared with dense attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import assume
from hypothesis import strategies as st

from paged_core.interfaces.layer import LayerSpec
from paged_testing.attention_cases import AttentionCases, Chunks


class AttentionConformance(AttentionCases):
    """Subclass it for an attention component::

        class TestMyAttention(AttentionConformance):
            component = "my_attention"
            dtypes = ("bfloat16",)

    Memory that no sequence owns is NaN, so that reading any of it shows.
    """

    head_dims: ClassVar[Sequence[int]] = (1, 6, 16, 33, 64, 80, 96, 128, 256)

    def layers(self) -> st.SearchStrategy[LayerSpec]:
        """Layers of any shape, with anything that a :class:`LayerSpec` may have, if it is served
        at all."""
        backend = self.make()

        def served(values: st.SearchStrategy[Any], **example: Any) -> st.SearchStrategy[Any]:
            layer = self.layer(self.dtypes[0], **example)
            return values if backend.check(layer) is None else st.none()

        windows = st.none() | st.integers(1, 9) | st.integers(30, 150)
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
            served(windows, sliding_window=9),
            served(st.none() | st.sampled_from([0.5, 5.0, 50.0]), soft_cap=5.0),
            served(st.booleans(), alibi_slopes=(0.1, 0.2, 0.3, 0.4)),
            st.sampled_from([1, 2, 3, 4, 8, 16, 32]),
        )

    def test_equals_dense_attention(self) -> None:
        backend = self.make()

        def equal(layer: LayerSpec, chunks: Chunks, seed: int) -> None:
            assume(backend.check(layer) is None)
            self.check_equal(layer, chunks, seed)

        lengths = st.tuples(st.integers(0, 40), st.just(1) | st.integers(1, 12))
        batches = st.lists(lengths, min_size=1, max_size=5)
        self.check(equal, self.layers(), batches, st.integers(0, 2**16))
