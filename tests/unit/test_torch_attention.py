"""Component ``torch`` where a chunk takes several tiles; all else is tested for conformance."""

from __future__ import annotations

import pytest

from paged_backends.attention import torch_attention
from paged_testing.attention_scene import Scene
from unit.attention_calls import check, layer, make

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("window", [None, 5])
def test_equals_dense_attention_when_a_chunk_takes_several_tiles(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, bound in (("_MAX_SCORES", 24), ("_MAX_KEYS", 16), ("_SLACK", 0)):
        monkeypatch.setattr(torch_attention, name, bound)
    chunks = [(5, 9), (9, 1), (0, 11), (3, 1), (30, 1), (0, 2), (0, 1)]
    of = layer(head_dim=8, dtype="float32", block_size=4, sliding_window=window)
    check(Scene(make("torch"), of, chunks, 1))
