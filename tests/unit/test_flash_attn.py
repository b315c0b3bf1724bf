"""Component ``flash_attn``: which provider is taken, how it is called, and why others are not."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

import pytest
import torch
from structlog.testing import capture_logs

from paged_backends.attention.flash_attention import FlashAttnAttention, details, unavailable_reason
from paged_core.engine.contexts import make_attention
from paged_core.errors import UnsupportedModel
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import Scene
from unit.attention_calls import (
    LAYER,
    batch_of,
    check,
    check_capture,
    layer,
    make,
    record,
    run,
    tokens,
)
from unit.attention_packages import flash_attn_2, flash_attn_3, flash_attn_4, torch_varlen
from unit.attention_packages.install import install
from unit.test_attention_plans import NoReads

EVERY = ("fa2", "fa3", "fa4", "torch")


def backend(provider: str = "auto", **settings: Any) -> FlashAttnAttention:
    return cast("Any", make({"name": "flash_attn", "provider": provider}, **settings))


def chosen(made: FlashAttnAttention, **changes: Any) -> str:
    """The provider that serves a layer, as it is logged."""
    of = layer(**changes)
    with capture_logs() as logs:
        made.bind(of, torch.zeros(made.cache_shape(of, 2), dtype=getattr(torch, of.dtype)))
    (entry,) = logs
    assert entry["event"] == "attention_provider_chosen"
    return str(entry["name"])


# ---------------------------------------------------------------------- which provider


def test_the_first_provider_that_serves_a_layer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *EVERY)
    assert chosen(backend()) == "fa3"
    assert chosen(backend(), block_size=256) == "fa2"
    assert chosen(backend(), block_size=512, alibi_slopes=(0.1,) * 4) == "fa2"
    install(monkeypatch, "fa4", "torch")
    assert chosen(backend()) == "fa4"
    assert chosen(backend(), block_size=256) == "torch"
    install(monkeypatch, *EVERY, capability=(8, 6))
    assert chosen(backend(), block_size=256) == "fa2"


def test_the_choice_is_logged_once_with_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "fa2", "torch")
    made, of = backend(), layer(block_size=256)
    with capture_logs() as logs:
        for _ in range(3):
            made.bind(of, torch.zeros(made.cache_shape(of, 2), dtype=torch.bfloat16))
    (entry,) = logs
    assert list(entry["refused"]) == ["flash-attn 3"]


def test_a_pinned_provider_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *EVERY)
    assert chosen(backend("fa4")) == "fa4"
    assert backend("fa2").check(LAYER) == (
        "flash-attn 2: its pages are multiples of 256 tokens: set block_size to 256, not 16"
    )
    with pytest.raises(ValueError, match="cannot serve"):
        backend("fa2").bind(LAYER, torch.zeros(2, 2, 2, 16, 64, dtype=torch.bfloat16))


def test_auto_logs_the_block_size_that_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "torch")
    with capture_logs() as logs:
        make_attention(EngineSettings(), Registry.discover(), [LAYER, LAYER])
    (entry,) = [log for log in logs if log["event"] == "component_chosen"]
    assert "PyTorch's varlen_attn: its pages are multiples of 256" in entry["refused"]["flash_attn"]
    assert "set block_size to 256" in entry["refused"]["flash_attn"]
    assert "pip install" in entry["refused"]["flashinfer"]


def test_a_component_that_is_named_is_refused_with_every_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "torch")
    settings = EngineSettings(attention="flash_attn")
    with pytest.raises(UnsupportedModel) as caught:
        make_attention(settings, Registry.discover(), [LAYER])
    for title in ("flash-attn 3: ", "flash-attn 2: ", "flash-attn-4: ", "PyTorch's varlen_attn: "):
        assert title in str(caught.value)


def test_fa3_says_what_its_build_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "fa3")
    config: Any = ModuleType("flash_attn_config")
    config.CONFIG = {"build_flags": {"FLASHATTENTION_DISABLE_SOFTCAP": True}}
    monkeypatch.setitem(sys.modules, "flash_attn_config", config)
    made = backend("fa3")
    assert made.check(LAYER) is None
    assert "its build leaves out soft caps" in (made.check(layer(soft_cap=3.0)) or "")


# ---------------------------------------------------------------------- packages


@pytest.mark.parametrize(
    ("provider", "command"),
    [
        ("fa2", "not installed (pip install flash-attn --no-build-isolation)"),
        ("fa3", "subdirectory=hopper"),
        ("fa4", "not installed (pip install --pre flash-attn-4)"),
        ("torch", "varlen_attn has no block_table"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    provider: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    size = 256 if provider in ("fa2", "torch") else 16
    assert command in (backend(provider).check(layer(block_size=size)) or "")
    assert command in (unavailable_reason() or "")


def test_a_missing_package_and_a_wrong_block_size_are_both_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    assert backend("fa2").check(LAYER) == (
        "flash-attn 2: not installed (pip install flash-attn --no-build-isolation), and its pages "
        "are multiples of 256 tokens: set block_size to 256, not 16"
    )


def test_flash_attn_4_alone_is_no_flash_attn_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed in a folder of the same name."""
    install(monkeypatch, "fa4")
    assert "flash-attn 2: not installed" in (backend("fa2").check(LAYER) or "")
    assert unavailable_reason() is None
    assert details().startswith("provider flash-attn-4; flash-attn 3: not installed")


def test_a_version_without_what_is_needed_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "fa2", "fa3")
    monkeypatch.setattr(flash_attn_2, "flash_attn_varlen_func", lambda q, block_table: q)
    monkeypatch.delattr(flash_attn_3, "flash_attn_with_kvcache")
    reason = backend("fa2").check(layer(block_size=256)) or ""
    assert "flash_attn_varlen_func has no softcap and no alibi_slopes, it is too old" in reason
    reason = backend("fa3").check(LAYER) or ""
    assert "flash_attn_interface has no flash_attn_with_kvcache, it is too old" in reason


class Broken(MetaPathFinder, Loader):
    """Finds ``flash_attn`` and raises when it is imported."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "flash_attn" else None

    def exec_module(self, module: ModuleType) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ImportError("flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E"),
        ModuleNotFoundError("No module named 'einops'", name="einops"),
        OSError("libcudart.so.12: cannot open shared object file"),
        RuntimeError("operator already registered\nand more"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_package_is_a_reason(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "torch")
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.setattr(sys, "meta_path", [Broken(error), *sys.meta_path])
    reason = backend("fa2").check(layer(block_size=256)) or ""
    assert "flash_attn is installed and cannot be imported" in reason
    assert str(error).partition("\n")[0] in reason
    assert "install it again (pip install flash-attn" in reason
    assert "\n" not in reason
    assert chosen(backend(), block_size=256) == "torch"


# ---------------------------------------------------------------------- calls


def test_a_step_that_decodes_is_computed_by_the_function_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "fa2")
    decodes = record(monkeypatch, flash_attn_2, "flash_attn_with_kvcache")
    others = record(monkeypatch, flash_attn_2, "flash_attn_varlen_func")
    made, of = backend("fa2"), layer(block_size=256)
    run(made, of, batch_of([(5, 1), (300, 1)], 256))
    assert (len(decodes), len(others)) == (1, 0)
    run(made, of, batch_of([(5, 1), (300, 2)], 256))
    assert (len(decodes), len(others)) == (1, 1)
    assert others[0]["window_size"] == (-1, -1)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("provider", EVERY)
def test_a_step_that_decodes_sees_its_window(
    provider: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *EVERY)
    size = 256 if provider in ("fa2", "torch") else 16
    of = layer(block_size=size, sliding_window=window)
    check(Scene(backend(provider), of, [(20, 1), (300, 1), (3, 1)], 5))


@pytest.mark.parametrize("captured", [False, True])
def test_a_step_reads_no_tensor(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one would wait for the device."""
    install(monkeypatch, "fa2")
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
        function = wraps(getattr(flash_attn_2, name))(lambda query, *args, **options: query)
        monkeypatch.setattr(flash_attn_2, name, function)
    made, of = backend(), layer(block_size=256)
    cache = torch.zeros(made.cache_shape(of, 2), dtype=torch.bfloat16)
    batch, parts = batch_of([(5, 1), (300, 1)], 256), tokens(of, 2)
    batch = replace(batch, block_tables=batch.block_tables % 2)
    batch = replace(batch, slot_mapping=batch.slot_mapping % 512)
    batch = replace(batch, block_tables_host=batch.block_tables_host % 2)
    with NoReads():
        plan = made.plan_capture(batch) if captured else made.plan(batch)
        made.bind(of, cache).forward(*parts, plan)
        if captured:
            made.update_capture(plan, batch)


def test_deterministic_computes_every_batch_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *EVERY)
    decodes = record(monkeypatch, flash_attn_2, "flash_attn_with_kvcache")
    calls = {
        "fa2": record(monkeypatch, flash_attn_2, "flash_attn_varlen_func"),
        "fa3": record(monkeypatch, flash_attn_3, "flash_attn_with_kvcache"),
        "torch": record(monkeypatch, torch_varlen, "varlen_attn"),
    }
    for provider, made in calls.items():
        size = 16 if provider == "fa3" else 256
        for batch in ([(5, 1)], [(5, 1), (0, 7)]):
            fixed = backend(provider, deterministic=True)
            run(fixed, layer(block_size=size), batch_of(batch, size))
        assert len(made) == 2
    assert not decodes
    assert {call["window_size"] for call in calls["fa2"]} == {(-1, 0)}
    assert [(call["num_splits"], call["max_seqlen_q"]) for call in calls["fa3"]] == [(1, 2), (1, 7)]
    assert {(call["num_splits"], call["window_size"]) for call in calls["torch"]} == {(1, (-1, 0))}
    reason = backend("fa3", deterministic=True).check(layer(sliding_window=9)) or ""
    assert "deterministic" in reason


def test_torch_packs_groups_where_every_query_sees_all(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "torch")
    calls = record(monkeypatch, torch_varlen, "varlen_attn")
    for window, batch in ((None, [(5, 1)]), (None, [(5, 2)]), (9, [(50, 1)])):
        run(backend(), layer(block_size=256, sliding_window=window), batch_of(batch, 256))
    assert [call["window_size"] for call in calls] == [(-1, -1), (-1, 0), (8, 0)]
    assert {call["num_splits"] for call in calls} == {None}


@pytest.mark.parametrize(("provider", "module"), [("fa3", flash_attn_3), ("fa4", flash_attn_4)])
def test_pages_that_are_loaded_whole_would_show_what_another_sequence_left(
    provider: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is why they are refused."""
    install(monkeypatch, provider)
    made, of = backend(provider), layer(block_size=module.TILE)
    assert "set block_size to 16 or 32" in (made.check(of) or "")
    monkeypatch.setattr(
        "paged_backends.attention.flash_packages._shorter_than_a_tile", lambda size: None
    )
    cache = torch.full(made.cache_shape(of, 1), float("nan"), dtype=torch.bfloat16)
    batch = batch_of([(0, 100)], module.TILE)
    out = made.bind(of, cache).forward(*tokens(of, 100), made.plan(batch))
    assert out.isnan().all()
    out = made.bind(of, cache.nan_to_num_(0)).forward(*tokens(of, 100), made.plan(batch))
    assert out.isfinite().all()


def test_blocks_that_a_cache_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "fa3")
    made = backend()
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="names block 2, and the cache has 2"):
        made.bind(LAYER, cache).forward(*tokens(LAYER, 3), made.plan(batch_of([(0, 1)] * 3)))


# ---------------------------------------------------------------------- CUDA graphs


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("provider", EVERY)
def test_a_captured_plan_is_replayed_with_other_numbers(
    provider: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *EVERY)
    made = backend(provider, deterministic=deterministic)
    of = layer(block_size=256 if provider in ("fa2", "torch") else 16)
    scene = Scene(made, of, [(30, 1), (2, 1), (14, 1), (9, 1)], 3)
    check_capture(scene, [0, 1, 2], [1, 3])


def test_a_replay_checks_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "fa3")
    made, batch = backend(), batch_of([(3, 1), (3, 1)])
    plan = made.plan_capture(batch)
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    made.bind(LAYER, cache).forward(*tokens(LAYER, 2), plan)
    with pytest.raises(ValueError, match="names block 2, and the cache has 2"):
        made.update_capture(plan, batch_of([(3, 1), (3, 1), (3, 1)]))
