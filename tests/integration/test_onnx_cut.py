"""A graph that is cut at its attentions computes what ONNX Runtime computes of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integration.onnx_graphs import Decoder, Grouped, MultiHead, Paged, Written, whole_logits
from integration.step_driver import load_runner, prompt_logits, settings
from paged_core.errors import UnsupportedModel

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def logits(folder: Path, **changes: Any) -> Any:
    """Logits of the tokens, in two chunks."""
    return prompt_logits(load_runner(settings(folder, **changes), "onnxruntime"), TOKENS, 5).numpy()


def check(decoder: Decoder, folder: Path) -> None:
    decoder.save(folder)
    np.testing.assert_allclose(logits(folder), whole_logits(folder, TOKENS), atol=1e-4)


@pytest.mark.parametrize(
    ("packed", "rotary", "attributes"),
    [
        (True, 0, {}),
        (False, 32, {}),
        (True, 16, {"scale": 0.1, "softcap": 2.0}),
        (False, 16, {"local_window_size": 3}),
        (True, 32, {"rotary_interleaved": 1, "kv_cache_bit_width": 0}),
    ],
)
def test_grouped_queries(
    packed: bool, rotary: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    decoder = Grouped(**attributes)
    decoder.packed, decoder.rotary = packed, rotary
    check(decoder, tmp_path)


@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}])
def test_several_heads(attributes: dict[str, Any], tmp_path: Path) -> None:
    check(MultiHead(**attributes), tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_paged_attention_computes_what_grouped_queries_do(packed: bool, tmp_path: Path) -> None:
    """ONNX Runtime has that operator on GPUs only; here it is cut like the others."""
    results = []
    for kind in (Grouped, Paged):
        decoder = kind(local_window_size=3, softcap=2.0)
        decoder.packed, decoder.rotary = packed, 16
        results.append(logits(decoder.save(tmp_path / kind.__name__)))
    np.testing.assert_allclose(*results, atol=1e-5)


@pytest.mark.parametrize(
    "attributes", [{}, {"cap": 1.5}, {"outside": 1}, {"first": 0}, {"first": 2}]
)
def test_attention_that_is_written_out(attributes: dict[str, Any], tmp_path: Path) -> None:
    check(Written(**attributes), tmp_path)


def test_a_scale_may_come_from_a_shape_behind_an_operator_of_onnx_runtime(tmp_path: Path) -> None:
    check(Written(shaped=1), tmp_path)


@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_attention_may_end_in_another_dtype_than_that_of_its_cache(
    dtype: str, tmp_path: Path
) -> None:
    Written(half=1).save(tmp_path)
    computed = logits(tmp_path, dtype=dtype)
    np.testing.assert_allclose(computed, whole_logits(tmp_path, TOKENS), atol=2e-2)


@pytest.mark.parametrize("slope", [0.5, 1e-4])
def test_a_mask_that_is_more_than_causal_is_found(slope: float, tmp_path: Path) -> None:
    """A bias by distance changes few tokens if it is small, and looks like any other mask."""
    Written(slope=slope).save(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"Softmax.* adds .* bias by distance"):
        load_runner(tmp_path, "onnxruntime")


@pytest.mark.parametrize("windows", [(None, 3), (5, 40)])
def test_windows_are_those_of_the_masks(
    windows: tuple[int | None, int | None], tmp_path: Path
) -> None:
    """Also one that no token of the trial is beyond."""
    check(Written(windows=windows), tmp_path)
    layers = load_runner(tmp_path, "onnxruntime").layers
    assert [layer.sliding_window for layer in layers] == list(windows)


def test_a_mask_with_a_hole_is_refused(tmp_path: Path) -> None:
    Written(hole=4).save(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"Softmax.* hides other tokens than later ones"):
        load_runner(tmp_path, "onnxruntime")


@pytest.mark.parametrize("chunk", [8, 32, 48])
def test_a_window_that_grows_is_refused(chunk: int, tmp_path: Path) -> None:
    """As tokens of a chunk attend to those of the chunk only."""
    Written(chunk=chunk).save(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"Softmax.* (changes with|hides other tokens)"):
        load_runner(tmp_path, "onnxruntime")


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (Grouped(causal=0), "GroupQueryAttention.* is not causal"),
        (Grouped(smooth_softmax=1), "has smooth_softmax, which is not known"),
        (MultiHead(unidirectional=0), "attends in both directions"),
    ],
)
def test_what_attention_does_not_do_here_is_refused_by_name(
    decoder: Decoder, message: str, tmp_path: Path
) -> None:
    decoder.save(tmp_path)
    with pytest.raises(UnsupportedModel, match=message):
        load_runner(tmp_path, "onnxruntime")
