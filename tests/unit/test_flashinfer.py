"""Component ``flashinfer``: what it refuses, and which wrappers are planned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from paged_backends.attention.flashinfer_attention import (
    FlashInferAttention,
    Pages,
    Wrappers,
    unavailable_reason,
)
from paged_core.interfaces.attention import SupportsGraphCapture
from unit.attention_calls import LAYER, batch_of, layer, make, run, tokens
from unit.attention_packages import flashinfer
from unit.attention_packages.install import install


def backend(**settings: Any) -> FlashInferAttention:
    return cast("Any", make({"name": "flashinfer"}, **settings))


class Holder:
    """Stands for a plan."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of wrapper that are made, and `plan` for each time that one is planned."""
    install(monkeypatch, "flashinfer")
    seen: list[str] = []
    for kind in ("Prefill", "Decode"):
        base = getattr(flashinfer, f"Batch{kind}WithPagedKVCacheWrapper")

        class Wrapper(base):  # type: ignore[misc, valid-type]
            made = kind

            def __init__(self, *args: Any, **options: Any) -> None:
                seen.append(" ".join((self.made, *map(str, options.values()))))
                super().__init__(*args, **options)

            def plan(self, *args: Any, **options: Any) -> None:
                seen.append("plan")
                super().plan(*args, **options)

        monkeypatch.setattr(flashinfer, base.__name__, Wrapper)
    return seen


def test_deterministic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "flashinfer")
    assert backend().check(LAYER) is None
    assert not isinstance(backend(), SupportsGraphCapture)
    assert "deterministic" in (backend(deterministic=True).check(LAYER) or "")


def test_a_missing_package_or_compiler_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch)
    assert (
        backend().check(LAYER)
        == unavailable_reason()
        == "not installed (pip install flashinfer-python)"
    )
    install(monkeypatch, "flashinfer")
    assert unavailable_reason() is None
    monkeypatch.delitem(sys.modules, "flashinfer_jit_cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        assert "there is no nvcc; install the CUDA toolkit" in (unavailable_reason() or "")
        assert "there is no nvcc" in (backend().check(LAYER) or "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert unavailable_reason() is None


def test_layers_of_one_kind_share_a_plan(planned: list[str]) -> None:
    made, batch = backend(), batch_of([(5, 3), (2, 1)])
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    plan = made.plan(batch)
    for of in (LAYER, LAYER, layer(sliding_window=9), LAYER):
        made.bind(of, cache).forward(*tokens(of, 4), plan)
    assert planned == ["Prefill", "plan", "Prefill", "plan"]


def test_a_step_that_decodes_has_a_wrapper_of_its_own(planned: list[str]) -> None:
    made = backend()
    for heads in ((4, 2), (8, 2), (5, 1)):
        run(made, layer(num_heads=heads[0], num_kv_heads=heads[1]), batch_of([(5, 1), (40, 1)]))
    assert [one for one in planned if one != "plan"] == ["Decode False", "Decode True"]


def test_a_wrapper_is_planned_again_when_its_plan_is_gone(planned: list[str]) -> None:
    made, batch = backend(), batch_of([(5, 3)])
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    attention = made.bind(LAYER, cache)
    for _ in range(3):
        attention.forward(*tokens(LAYER, 3), made.plan(batch))
    assert planned == ["Prefill", *["plan"] * 3]
    plans = [made.plan(batch) for _ in range(2)]
    for plan in plans:
        attention.forward(*tokens(LAYER, 3), plan)
    assert planned[4:] == ["plan", "Prefill", "plan"]


def test_a_wrapper_is_not_planned_again_before_its_plan_is_copied(planned: list[str]) -> None:
    wrappers, device = Wrappers(), torch.device("cpu")
    holder = Holder()
    first = wrappers.take("Prefill", holder, device)
    first.copied = Mock()
    first.copied.query.return_value = False
    del holder
    holder = Holder()
    second = wrappers.take("Prefill", holder, device)
    assert second is not first
    first.copied.query.return_value = True
    assert wrappers.take("Prefill", Holder(), device) is first
    assert planned == ["Prefill", "Prefill"]


def test_pages_are_runs_of_what_sequences_hold() -> None:
    batch = batch_of([(30, 3), (0, 1), (15, 1)])
    pages = Pages.of(batch, 16)
    assert pages.page_start.tolist() == [0, 3, 4, 5]
    assert pages.pages.tolist() == [0, 1, 2, 3, 6]
    assert pages.last_page_len.tolist() == [1, 1, 16]
    assert pages.query_start.tolist() == [0, 3, 4, 5]


def test_blocks_that_a_cache_does_not_have_are_refused(planned: list[str]) -> None:
    made = backend()
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="names block 2, and the cache has 2"):
        made.bind(LAYER, cache).forward(*tokens(LAYER, 3), made.plan(batch_of([(0, 1)] * 3)))
    assert not planned
