"""Component ``hybrid``: which part computes what, in which order, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch

from paged_backends.attention.hybrid_attention import HybridAttention, make_hybrid, part_of
from paged_backends.attention.settings import HybridSettings, TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_core.cli import main
from paged_core.engine.contexts import AttentionContext, make_attention
from paged_core.errors import SettingsError, UnsupportedModel
from paged_core.interfaces.attention import SupportsGraphCapture
from paged_core.interfaces.layer import LayerSpec
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_testing.attention_scene import Scene
from paged_testing.engines import registry_with
from unit.attention_calls import LAYER, batch_of, layer, tokens
from unit.attention_packages import install
from unit.packed_attention import PACKED

pytestmark = pytest.mark.heavy


def hybrid(prefill: Any, decode: Any, *parts: object) -> HybridAttention:
    options = HybridSettings(prefill=prefill, decode=decode)
    registry = registry_with(*parts)
    return make_hybrid(options, AttentionContext(settings=EngineSettings(), registry=registry))


class HeadsFirstSettings(TorchSettings):
    """Options of ``torch``."""

    name: Literal["heads_first"] = "heads_first"  # type: ignore[assignment]


class HeadsFirstAttention(TorchAttention):
    """Has as many numbers in its cache as ``torch``, in another order."""

    def cache_shape(self, layer: LayerSpec, num_blocks: int, /) -> tuple[int, ...]:
        return (2, num_blocks, layer.num_kv_heads, layer.block_size, layer.head_dim)


HEADS_FIRST = Component(
    "attention", HeadsFirstSettings, f"{__name__}:HeadsFirstAttention", summary="heads come first"
)


def torch_twice() -> HybridAttention:
    return hybrid("torch", "torch")


# ---------------------------------------------------------------------- which computes what


def roles(made: HybridAttention, chunks: list[tuple[int, int]]) -> list[str]:
    """The roles of the calls for a batch, in order."""
    return [one.role for one in made.plan(batch_of(chunks)).passes(16)]


def test_sequences_with_one_new_token_are_decoded() -> None:
    made = torch_twice()
    assert roles(made, [(5, 1), (0, 1)]) == ["decode"]
    assert roles(made, [(5, 2), (0, 3)]) == ["prefill"]
    assert roles(made, [(5, 1), (0, 3), (2, 1)]) == ["prefill", "decode"]


def test_a_part_has_the_numbers_of_its_sequences() -> None:
    whole = batch_of([(30, 1), (0, 3), (7, 1), (15, 4)])
    part = part_of(whole, np.array([1, 3]))
    assert part.rows_R.tolist() == [1, 2, 3, 5, 6, 7, 8]
    batch = part.batch
    assert batch.query_start.tolist() == batch.query_start_host.tolist() == [0, 3, 7]
    assert batch.seq_lens.tolist() == batch.seq_lens_host.tolist() == [3, 19]
    assert batch.block_tables.tolist() == batch.block_tables_host.tolist() == [[2, 3], [6, 7]]
    assert batch.slot_mapping.tolist() == whole.slot_mapping[part.rows_R].tolist()
    assert (batch.max_query_len, batch.max_seq_len) == (4, 19)
    for name in ("query_start", "seq_lens", "block_tables", "slot_mapping"):
        assert getattr(batch, name).dtype == getattr(whole, name).dtype


PREFILL_READS_DECODE = ([(15, 1), (16, 24)], [(0, 1, 1)], [0], [1, 0], ["decode", "prefill"])
DECODE_READS_PREFILL = ([(0, 40), (32, 1)], [(0, 1, 2)], [], [1, 0], ["prefill", "decode"])
EACH_READS_THE_OTHER = (
    [(15, 1), (16, 24), (0, 40), (32, 1)],
    [(0, 1, 1), (2, 3, 2)],
    [0],
    [3, 1, 0, 2],
    ["decode", "prefill", "decode"],
)


@pytest.mark.parametrize(
    ("chunks", "shared", "cached", "members", "order"),
    [PREFILL_READS_DECODE, DECODE_READS_PREFILL, EACH_READS_THE_OTHER],
    ids=["prefill reads decode", "decode reads prefill", "each reads the other"],
)
def test_a_part_reads_what_the_other_writes_in_the_same_step(
    chunks: list[tuple[int, int]],
    shared: list[tuple[int, int, int]],
    cached: list[int],
    members: list[int],
    order: list[str],
) -> None:
    """Blocks are shared between a sequence that fills them in this step and one that reads them.

    Args:
        shared: owner, reader, and how many blocks.
        cached: sequences whose cached tokens are written before.
    """
    made, of = torch_twice(), layer(dtype="float32")
    scene = Scene(made, of, chunks, 3)
    for owner, reader, count in shared:
        scene.share_blocks(owner=owner, other=reader, count=count)
    scene.write_cached(cached)
    seen: list[list[str]] = []
    plan = made.plan

    def watched(batch: Any) -> Any:
        found = plan(batch)
        seen.append([one.role for one in found.passes(16)])
        return found

    cast("Any", made).plan = watched
    for index, out in zip(members, scene.run(members, write_cached=False), strict=True):
        np.testing.assert_allclose(out.numpy(), scene.expected(index), atol=2e-5, rtol=2e-5)
    assert seen == [order]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("prefill", "decode", "changes", "words"),
    [
        ("torch", "flash_attn", {}, "(2, 7, 16, 2, 64) for 7 blocks, and that of 'flash_attn' is "),
        ("torch", "heads_first", {"num_kv_heads": 16, "num_heads": 16}, "choose two components"),
        ("torch", "packed", {}, "decode 'packed': it has a cache layout of its own"),
        ("torch", "flashinfer", {}, "decode 'flashinfer': not installed (pip install flashinfer"),
    ],
)
def test_parts_that_cannot_share_a_cache_are_refused(
    prefill: str, decode: str, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "fa3")
    made = hybrid(prefill, decode, HEADS_FIRST, PACKED)
    assert words in (made.check(layer(**changes)) or "")


def test_float8_is_served_where_both_serve_it() -> None:
    of = layer(kv_cache_dtype="fp8_e4m3")
    made = torch_twice()
    assert made.check(of) is None
    assert (made.cache_shape(of, 3), made.block_dim()) == ((2, 3, 16, 2, 65), 1)


def test_deterministic_is_refused() -> None:
    context = AttentionContext(settings=EngineSettings(deterministic=True))
    made = make_hybrid(HybridSettings(prefill="torch", decode="torch"), context)
    assert "deterministic" in (made.check(LAYER) or "")


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ("hybrid", "attention.decode: a part cannot be 'hybrid'; name one of cpu, "),
        ("auto", "attention.decode: a part cannot be 'auto'; name one of cpu, "),
        ("torhc", "attention.decode: no attention is called 'torhc'; did you mean 'torch'"),
        (
            {"name": "cpu", "instruction_set": "sse"},
            "attention.decode.instruction_set.*: Input should be",
        ),
        ({"name": "torch", "speed": 3}, "attention.decode.speed: 'torch' has no such option"),
    ],
    ids=str,
)
def test_settings_of_a_part_are_checked(decode: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        hybrid("torch", decode)


def test_auto_never_tries_it() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        make_attention(EngineSettings(), Registry.discover(), [layer(num_heads=3)])
    assert "hybrid" not in str(caught.value)


# ---------------------------------------------------------------------- CUDA graphs


def test_decoding_is_captured_where_its_part_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, "fa3", "flashinfer").calls
    assert not isinstance(torch_twice(), SupportsGraphCapture)
    assert not isinstance(hybrid("flash_attn", "flashinfer"), SupportsGraphCapture)
    made = hybrid("flashinfer", "flash_attn")
    assert isinstance(made, SupportsGraphCapture)
    batch = batch_of([(3, 1), (20, 1)])
    plan, bound = (
        made.plan_capture(batch),
        made.bind(LAYER, torch.zeros(4, 2, 2, 16, 64).bfloat16()),
    )
    query, key, value = tokens(LAYER, 2)
    bound.forward(query, key, value, plan)
    batch.seq_lens.copy_(torch.tensor([1, 21]))
    made.update_capture(plan, replace(batch, seq_lens_host=batch.seq_lens.numpy().copy()))
    bound.forward(query, key, value, plan)
    assert [call.options["cache_seqlens"] for call in calls] == [[4, 21], [1, 21]]


# ---------------------------------------------------------------------- settings and engines


def test_every_layer_of_settings_names_its_parts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = {"name": "cpu", "instruction_set": "avx2"}
    file = tmp_path / "engine.yaml"
    file.write_text("attention: {name: hybrid, prefill: torch, decode: {name: cpu}}")
    of_file, hybrid = ("--config", str(file)), ("--attention", "hybrid")
    environ = {
        "PAGED_CORE_ATTENTION": "hybrid",
        "PAGED_CORE_ATTENTION__PREFILL": "torch",
        "PAGED_CORE_ATTENTION__DECODE": json.dumps(table),
    }
    parts = ("--attention.prefill", "torch", "--attention.decode")
    cases: list[tuple[Sequence[str], dict[str, str], dict[str, str]]] = [
        (of_file, {}, {"name": "cpu"}),
        ((), environ, table),
        ((*hybrid, *parts, "cpu"), {}, {"name": "cpu"}),
        ((*hybrid, *parts, json.dumps(table)), {}, table),
        ((*of_file, "--attention.decode", "torch"), {}, {"name": "torch"}),
    ]
    for argv, named, decode in cases:
        assert main(["config", "--json", *argv], named) == 0
        found = json.loads(capsys.readouterr().out)["settings"]["attention"]
        assert found == {"name": "hybrid", "prefill": {"name": "torch"}, "decode": decode}
