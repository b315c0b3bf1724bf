"""Blocks copied by the Triton kernel are those that indexing copies."""

from __future__ import annotations

import pytest
import torch

from paged_backends.kernels.triton.availability import is_interpreted

if not is_interpreted():
    pytest.skip("there is a GPU, and Triton interprets nothing", allow_module_level=True)

from paged_backends.kernels.triton.cache import copy_blocks

pytestmark = pytest.mark.usefixtures("watched_accesses")

PAIRS = {
    "apart": ([0, 3, 3], [5, 1, 4]),
    "in a circle": ([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]),
    "overwritten": ([0, 1], [1, 0]),
}


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (torch.bfloat16, (2, 2, 16, 20)),
        (torch.float32, (2, 1, 3, 7)),
        (torch.float16, (2, 1, 1, 1)),
        (torch.uint8, (1, 1, 9)),
    ],
    ids=str,
)
def test_equals_indexing(pairs: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    origins, destinations = PAIRS[pairs]
    caches = torch.randint(0, 100, (3, 6, *shape)).to(dtype)
    wanted = caches.clone()
    wanted[:, destinations] = caches[:, origins]
    copy_blocks(caches, origins, destinations)
    assert torch.equal(caches, wanted)
