"""Packages for attention on GPUs: which is taken, what it is told, and why others are not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from structlog.testing import capture_logs

from paged_backends.attention import flash_attention, flashinfer_attention
from paged_backends.attention.flashinfer_attention import Wrappers
from paged_core.engine.contexts import make_attention
from paged_core.errors import UnsupportedModel
from paged_core.interfaces.attention import SupportsGraphCapture
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from unit.attention_calls import LAYER, batch_of, layer, make, run, tokens
from unit.attention_packages import PAGES, Installed, install
from unit.test_attention_plans import NoReads

EVERY = ("fa2", "fa3", "fa4", "torch")


def backend(provider: str = "auto", **settings: Any) -> Any:
    if provider == "flashinfer":
        return make(provider, **settings)
    return make({"name": "flash_attn", "provider": provider}, **settings)


def chosen(made: Any, **changes: Any) -> str:
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
    assert chosen(backend("fa4")) == "fa4"
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
    with pytest.raises(ValueError, match="cannot serve"):
        backend("fa2").bind(LAYER, torch.zeros(2, 2, 2, 16, 64, dtype=torch.bfloat16))


def test_an_engine_is_told_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "torch")
    with capture_logs() as logs:
        make_attention(EngineSettings(), Registry.discover(), [LAYER, LAYER])
    (entry,) = [log for log in logs if log["event"] == "component_chosen"]
    assert "PyTorch's varlen_attn: its pages are multiples of 256" in entry["refused"]["flash_attn"]
    assert "set block_size to 256" in entry["refused"]["flash_attn"]
    assert "--no-build-isolation), and its pages are multiples" in entry["refused"]["flash_attn"]
    assert "pip install" in entry["refused"]["flashinfer"]
    with pytest.raises(UnsupportedModel) as caught:
        make_attention(EngineSettings(attention="flash_attn"), Registry.discover(), [LAYER])
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


def test_what_deterministic_rules_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *EVERY, "flashinfer")
    fixed = backend("fa3", deterministic=True)
    assert fixed.check(LAYER) is None
    assert "deterministic" in fixed.check(layer(sliding_window=9))
    assert backend("flashinfer").check(LAYER) is None
    assert "deterministic" in backend("flashinfer", deterministic=True).check(LAYER)


# ---------------------------------------------------------------------- packages


@pytest.mark.parametrize(
    ("provider", "command"),
    [
        ("fa2", "not installed (pip install flash-attn --no-build-isolation)"),
        ("fa3", "subdirectory=hopper"),
        ("fa4", "not installed (pip install --pre flash-attn-4)"),
        ("torch", "varlen_attn has no block_table"),
        ("flashinfer", "not installed (pip install flashinfer-python)"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    provider: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    module = flashinfer_attention if provider == "flashinfer" else flash_attention
    assert command in backend(provider).check(layer(block_size=PAGES.get(provider, 16)))
    assert command in (module.unavailable_reason() or "")


def test_flash_attn_4_alone_is_no_flash_attn_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are installed in a folder of the same name."""
    install(monkeypatch, "fa4")
    assert "flash-attn 2: not installed" in backend("fa2").check(LAYER)
    assert flash_attention.unavailable_reason() is None
    said = flash_attention.details()
    assert said.startswith("provider flash-attn-4; flash-attn 3: not installed")


def test_a_version_without_what_is_needed_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = install(monkeypatch, "fa2", "fa3").modules
    modules["fa2"].flash_attn_varlen_func = lambda q, block_table: q
    del modules["fa3"].flash_attn_with_kvcache
    reason = backend("fa2").check(layer(block_size=256))
    assert "flash_attn_varlen_func has no softcap and no alibi_slopes, it is too old" in reason
    reason = backend("fa3").check(LAYER)
    assert "flash_attn_interface has no flash_attn_with_kvcache, it is too old" in reason


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('flash_attn_2_cuda.so: undefined symbol')", "undefined symbol"),
        ("import no_such_einops", "No module named 'no_such_einops'"),
        (r"raise RuntimeError('registered already\nand more')", "registered already"),
    ],
)
def test_a_broken_package_is_a_reason(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "torch")
    monkeypatch.delitem(sys.modules, "flash_attn")
    (tmp_path / "flash_attn.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    reason = backend("fa2").check(layer(block_size=256))
    assert "flash_attn is installed and cannot be imported" in reason
    assert said in reason
    assert "install it again (pip install flash-attn" in reason
    assert "\n" not in reason
    assert chosen(backend(), block_size=256) == "torch"


def test_flashinfer_needs_its_kernels_or_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, "flashinfer")
    assert flashinfer_attention.unavailable_reason() is None
    monkeypatch.delitem(sys.modules, "flashinfer_jit_cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        reason = flashinfer_attention.unavailable_reason() or ""
        assert "there is no nvcc; install the CUDA toolkit" in reason
        assert backend("flashinfer").check(LAYER) == reason
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert flashinfer_attention.unavailable_reason() is None


# ---------------------------------------------------------------------- calls

DECODE, MIXED = [(5, 1), (300, 1)], [(5, 1), (30, 3)]
OF_FLASH_ATTN = {"softmax_scale": 0.125, "causal": True, "softcap": 0.0, "window_size": (-1, -1)}
USUAL = {
    "fa2": {**OF_FLASH_ATTN, "alibi_slopes": None},
    "fa3": {**OF_FLASH_ATTN, "num_splits": 0},
    "fa4": {**OF_FLASH_ATTN, "window_size": (None, None), "learnable_sink": None},
    "torch": {"scale": 0.125, "window_size": (-1, 0), "enable_gqa": True, "num_splits": None},
}
"""Options that each is given for a plain layer, beside the sequences."""
WINDOW, SLOPES = {"sliding_window": 9}, {"alibi_slopes": (0.5, 0.25, 0.125, 1.0)}
SINKS = {"sinks": (0.5, -1.0, 0.0, 2.0)}
Told = tuple[str, list[tuple[int, int]], dict[str, Any], bool, dict[str, Any]]
CALLS: list[Told] = [
    ("fa2", DECODE, {}, False, {}),
    ("fa2", DECODE, {**WINDOW, "soft_cap": 3.0}, False, {"window_size": (8, 0), "softcap": 3.0}),
    ("fa2", DECODE, {}, True, {"window_size": (-1, 0)}),
    ("fa2", MIXED, SLOPES, False, {"alibi_slopes": [0.5, 0.25, 0.125, 1.0]}),
    ("fa3", DECODE, WINDOW, False, {"window_size": (8, 0)}),
    ("fa3", DECODE, {}, True, {"max_seqlen_q": 2, "num_splits": 1}),
    ("fa3", MIXED, {}, True, {"num_splits": 1}),
    ("fa4", MIXED, {"soft_cap": 3.0}, False, {"softcap": 3.0}),
    ("fa4", MIXED, SINKS, False, {"learnable_sink": [0.5, -1.0, 0.0, 2.0]}),
    ("fa4", DECODE, WINDOW, False, {"causal": False, "window_size": (8, 0)}),
    ("torch", DECODE, {}, False, {"window_size": (-1, -1)}),
    ("torch", DECODE, {"num_heads": 2}, True, {"enable_gqa": False, "num_splits": 1}),
    ("torch", MIXED, WINDOW, False, {"window_size": (8, 0)}),
]
"""Provider, batch, changes of the layer, ``deterministic``, and what is told instead."""
TOKENS = {"fa2": "cu_seqlens_k", "fa3": "cache_seqlens", "fa4": "seqused_k", "torch": "seqused_k"}


@pytest.mark.parametrize(("provider", "chunks", "changes", "fixed", "other"), CALLS)
def test_what_a_package_is_told(
    provider: str,
    chunks: list[tuple[int, int]],
    changes: dict[str, Any],
    fixed: bool,
    other: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = install(monkeypatch, *EVERY).calls
    of = layer(block_size=PAGES[provider], **changes)
    batch = batch_of(chunks, of.block_size)
    with NoReads():
        run(backend(provider, deterministic=fixed), of, batch)
    (call,) = calls
    decodes = provider == "fa2" and chunks is DECODE and not fixed
    usual = "flash_attn_with_kvcache" if decodes or provider == "fa3" else "flash_attn_varlen_func"
    assert call.function == ("varlen_attn" if provider == "torch" else usual)
    new, lengths = [n for _, n in chunks], [sum(chunk) for chunk in chunks]
    ends = [0, lengths[0], sum(lengths)]
    told = {
        **{"cu_seqlens_q": [0, new[0], sum(new)], "cu_seq_q": [0, new[0], sum(new)]},
        **{"cu_seqlens_k": ends, "cu_seq_k": ends},
        **{"cache_seqlens": lengths, "seqused_k": lengths},
        **{"max_seqlen_q": max(new), "max_q": max(new)},
        **{"max_seqlen_k": max(lengths), "max_k": max(lengths)},
        **dict.fromkeys(("block_table", "page_table"), batch.block_tables_host.tolist()),
        **{**USUAL[provider], **other},
    }
    assert call.options == {name: told[name] for name in call.options}
    needed = {*USUAL[provider], "cache_seqlens" if decodes else TOKENS[provider]}
    assert needed <= call.options.keys()


@pytest.mark.parametrize("provider", [*EVERY, "flashinfer"])
def test_what_is_new_is_in_the_cache_when_a_package_reads_it(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch, *EVERY, "flashinfer").calls
    made, of = backend(provider), layer(block_size=PAGES.get(provider, 16))
    batch = batch_of([(3, 2)], of.block_size)
    cache = torch.zeros(made.cache_shape(of, 1), dtype=torch.bfloat16)
    query, key, value = tokens(of, 2)
    out = made.bind(of, cache).forward(query, key, value, made.plan(batch))
    given = calls[-1].given
    keys, values = (
        given["cache"].transpose(2, 3).unbind(1)
        if provider == "flashinfer"
        else (given["k"], given["v"])
    )
    assert keys.shape == (1, of.block_size, 2, 64)
    assert torch.equal(given["q"].view(2, 4, 64), query)
    assert torch.equal(keys[0, 3:5], key)
    assert torch.equal(values[0, 3:5], value)
    assert not keys[0, 5:].any()
    assert out.shape == query.shape


@pytest.mark.parametrize("provider", EVERY)
def test_a_captured_plan_follows_the_numbers_of_its_tensors(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a replay does, of which only the tensors change."""
    calls = install(monkeypatch, *EVERY).calls
    made, of = backend(provider, deterministic=True), layer(block_size=PAGES[provider])
    batch, parts = batch_of([(30, 1), (2, 1)], of.block_size), tokens(of, 2)
    cache = torch.zeros(made.cache_shape(of, 4), dtype=torch.bfloat16)
    other = batch_of([(9, 1), (20, 1)], of.block_size)
    with NoReads():
        plan, bound = made.plan_capture(batch), made.bind(of, cache)
        bound.forward(*parts, plan)
        batch.seq_lens.copy_(other.seq_lens)
        made.update_capture(plan, replace(batch, seq_lens_host=other.seq_lens_host))
        bound.forward(*parts, plan)
    for call, lengths in zip(calls, ([31, 3], [10, 21]), strict=True):
        ends = [0, lengths[0], sum(lengths)]
        name = TOKENS[provider]
        assert call.options[name] == (ends if name.startswith("cu_") else lengths)
        assert call.options.get("cu_seq_k", ends) == ends


@pytest.mark.parametrize("provider", ["fa3", "flashinfer"])
def test_blocks_that_a_cache_does_not_have_are_refused(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch, provider).calls
    made, said = backend(provider), "names block 2, and the cache has 2"
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    bound, beyond = made.bind(LAYER, cache), batch_of([(3, 1)] * 3)
    with pytest.raises(ValueError, match=said):
        bound.forward(*tokens(LAYER, 3), made.plan(beyond))
    assert not calls
    if provider == "fa3":
        plan = made.plan_capture(batch_of([(3, 1), (3, 1)]))
        bound.forward(*tokens(LAYER, 2), plan)
        with pytest.raises(ValueError, match=said):
            made.update_capture(plan, beyond)


# ---------------------------------------------------------------------- FlashInfer


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Installed:
    return install(monkeypatch, "flashinfer")


def names(found: Installed) -> list[str]:
    return [call.function for call in found.calls if not call.function.endswith("run")]


def test_flashinfer_is_told_runs_of_pages(flashinfer: Installed) -> None:
    made = backend("flashinfer")
    assert not isinstance(made, SupportsGraphCapture)
    run(made, layer(sliding_window=9, soft_cap=3.0), batch_of([(30, 3), (0, 1), (15, 1)]))
    run(made, LAYER, batch_of([(30, 1), (0, 1), (15, 1)]))
    run(made, layer(num_heads=8), batch_of([(5, 1)]))
    planned = [call.given for call in flashinfer.calls if call.function.endswith("planned")]
    prefill, decode, _ = planned
    dtypes = {"q_data_type": "bfloat16", "kv_data_type": "bfloat16", "sm_scale": 0.125}
    assert prefill == {
        "runs": [[0, 3, 4, 5], [0, 3, 4, 5], [0, 1, 2, 3, 6], [1, 1, 16]],
        "shape": [4, 2, 64, 16],
        **{"causal": True, "window_left": 8, "logits_soft_cap": 3.0, **dtypes},
    }
    assert decode == {
        "runs": [[0, 2, 3, 4], [0, 1, 2, 4], [15, 1, 16]],
        "shape": [4, 2, 64, 16],
        **{"window_left": -1, "logits_soft_cap": None, **dtypes},
    }
    wrappers = [
        (call.function, call.given) for call in flashinfer.calls if call.function.endswith("made")
    ]
    assert wrappers == [
        ("Prefill made", {}),
        ("Decode made", {"use_tensor_cores": False}),
        ("Decode made", {"use_tensor_cores": True}),
    ]


def test_layers_of_one_kind_share_a_plan_and_steps_a_wrapper(flashinfer: Installed) -> None:
    made, batch = backend("flashinfer"), batch_of([(5, 3), (2, 1)])
    cache = torch.zeros(made.cache_shape(LAYER, 2), dtype=torch.bfloat16)
    plan = made.plan(batch)
    for of in (LAYER, LAYER, layer(sliding_window=9), LAYER):
        made.bind(of, cache).forward(*tokens(of, 4), plan)
    assert names(flashinfer) == ["Prefill made", "Prefill planned"] * 2
    del plan
    kept = [made.plan(batch) for _ in range(3)]
    for plan in kept:
        made.bind(LAYER, cache).forward(*tokens(LAYER, 4), plan)
    again = ["Prefill planned"] * 2
    assert names(flashinfer)[4:] == [*again, "Prefill made", "Prefill planned"]


def test_a_wrapper_is_not_planned_again_before_its_plan_is_copied(flashinfer: Installed) -> None:
    class Holder:
        """Stands for a plan."""

    wrappers, device, holder = Wrappers(), torch.device("cpu"), Holder()
    first = wrappers.take("Prefill", holder, device)
    first.copied = Mock()
    first.copied.query.return_value = False
    del holder
    holder = Holder()
    assert wrappers.take("Prefill", holder, device) is not first
    first.copied.query.return_value = True
    assert wrappers.take("Prefill", Holder(), device) is first
