"""Interpreted Triton kernels use no memory but their tensors', and programs run in any order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paged_backends.kernels.triton.availability import is_interpreted

if not is_interpreted():
    pytest.skip("there is a GPU, and Triton interprets nothing", allow_module_level=True)


from paged_backends.attention.triton_layer import TritonLayer
from unit.attention_calls import check
from unit.test_triton_faults import SCENES, SMALL, run
from unit.triton_accesses import watched
from unit.triton_kernels import H200, LaunchedFor, scene

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("name", SCENES)
def test_attention_in_any_order(name: str) -> None:
    with watched(backwards=True):
        run(TritonLayer, name)


def test_a_sequence_of_few_splits_beside_one_of_many() -> None:
    """Each split that nothing was computed for holds NaN."""
    with watched():
        check(scene(LaunchedFor(H200), SMALL, [(530, 1), (20, 1)]))


def test_a_query_that_sees_nothing_of_a_tile() -> None:
    """The window of a later one begins behind the first tile of keys."""
    with watched():
        check(scene(LaunchedFor(None), replace(SMALL, sliding_window=7), [(200, 100)]))
