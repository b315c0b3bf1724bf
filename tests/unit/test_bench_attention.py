"""``bench attention``: what it prints and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paged_backends.attention.settings import TorchSettings
from paged_backends.attention.torch_attention import TorchAttention
from paged_core.engine.contexts import AttentionContext
from paged_core.errors import SettingsError
from paged_core.interfaces.attention import AttentionBatch
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings
from paged_plugins.bench import attention_case, attention_command
from paged_plugins.bench.attention_case import BARE, AttentionCase, BareAttention
from paged_plugins.bench.device import Rates
from unit.bench_tasks import LAYER, runner

pytestmark = pytest.mark.heavy


Capture = pytest.CaptureFixture[str]

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
SMALL = (
    *("--heads", "4:2:8", "--block-size", "4", "--dtype", "float32", "--repeats", "2"),
    "--no-roofline",
)
run = runner("attention")


@pytest.fixture(autouse=True)
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_plugins.bench.attention_case._CACHES", 1 << 12)


def test_a_row_for_every_batch_and_component(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    argv = ("--batch", "3x20", "--batch", "2x0+6", "--shared-prefix", "9", "--output", str(file))
    found: dict[str, Any] = json.loads(run(capsys, *SMALL, *argv, "--json"))
    assert json.loads(file.read_text()) == found
    assert set(found) == {"machine", "refused", "rows"}
    assert {"cpu", "cores", "device", "copy_bytes_per_s"} <= set(found["machine"])
    served = {row["component"] for row in found["rows"]}
    assert "torch" in served
    assert not served & {one["component"] for one in found["refused"]}
    assert all(one["reason"] for one in found["refused"])
    expected = [("3x20+1", 9), ("2x0+6", 0)]
    assert [(row["batch"], row["shared_prefix"]) for row in found["rows"]] == [
        case for case in expected for _ in served
    ]
    assert all(row["us_per_layer"] > 0 < row["us_plan"] for row in found["rows"])
    assert all(row["bytes_per_s"] > 0 < row["operations_per_s"] for row in found["rows"])
    assert all(row["us_per_layer_captured"] is None for row in found["rows"])


def test_shares_of_what_the_machine_can_do(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = Rates(read=1e9, copy=2e9, sums=5e9)
    monkeypatch.setattr(attention_command, "measure_rates", lambda dtype, device: rates)
    argv = [*SMALL[:-1], "--backends", "torch", "--batch", "2x9", "--json"]
    found = json.loads(run(capsys, *argv))
    row = found["rows"][0]
    assert found["machine"]["copy_bytes_per_s"] == 2e9
    assert found["machine"]["matmul_operations_per_s"] == 5e9
    assert row["share_of_copy"] == pytest.approx(row["bytes_per_s"] / 2e9, abs=1e-4)
    assert row["share_of_matmul"] == pytest.approx(row["operations_per_s"] / 5e9, abs=1e-4)
    table = run(capsys, *argv[:-1])
    assert "us per layer" in table
    assert "2x9+1" in table.splitlines()[-1]
    assert "% " in table.splitlines()[-1]


def test_a_grid_of_heads_and_a_cache_of_8_bit_floats(capsys: Capture) -> None:
    argv = ("--heads", "2:2:16", "--kv-cache-dtype", "fp8_e4m3", "--batch", "2x9", "--json")
    found = json.loads(run(capsys, *SMALL, *argv))
    shapes = [(4, 2, 8), (2, 2, 16)]
    rows = [row for row in found["rows"] if row["component"] == "torch"]
    assert [(r["num_heads"], r["num_kv_heads"], r["head_dim"]) for r in rows] == shapes
    assert {row["kv_cache_dtype"] for row in rows} == {"fp8_e4m3"}
    refused = [one for one in found["refused"] if one["component"] == "cpu"]
    assert [one["heads"] for one in refused] == ["4:2:8", "2:2:16"]
    if not refused[0]["reason"].startswith("it has no fp8_e4m3 cache"):
        assert "compiler" in refused[0]["reason"]


def test_libraries_are_called_without_pages(capsys: Capture) -> None:
    argv = ("--bare", "--backends", "torch", "--json")
    batches = [part for text in ("2x9", "2x0+4", "2x5+3") for part in ("--batch", text)]
    found = json.loads(run(capsys, *SMALL, *argv, *batches))
    assert [row["component"] for row in found["rows"]] == 3 * ["torch", "bare sdpa"]
    refused = {one["component"]: one["reason"] for one in found["refused"]}
    assert set(refused) == {f"bare {one.name}" for one in BARE} - {"bare sdpa"}
    assert set(refused.values()) == {"it needs a CUDA device, and the layers are on cpu"}


@pytest.mark.parametrize("text", ["2x9+1", "2x0+4", "3x5+3"])
def test_a_library_computes_what_a_backend_does(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, layer = AttentionCase.parse(text), LAYER
    batch, num_blocks = case.batch(layer, 0)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(case.num_sequences * count, heads, 8, generator=generator)
        for count, heads in ((case.num_new, 4), (case.length, 2), (case.length, 2))
    )
    monkeypatch.setattr(attention_case, "random_rows", lambda *_: [query, key, value])
    out = BARE[0].run(case, layer)()
    assert isinstance(out, torch.Tensor)
    expected = _attend(batch, num_blocks, case, (query, key, value))
    torch.testing.assert_close(out.transpose(1, 2).flatten(0, 1), expected)


def _attend(
    batch: AttentionBatch, num_blocks: int, case: AttentionCase, rows: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """Write the cached tokens into the blocks, then run the backend ``torch``."""
    query, key, value = rows
    backend = TorchAttention(TorchSettings(), AttentionContext(settings=EngineSettings()))
    bound = backend.bind(LAYER, torch.zeros(backend.cache_shape(LAYER, num_blocks)))
    whole, _ = AttentionCase(case.num_sequences, 0, case.length).batch(LAYER, 0)
    assert torch.equal(whole.block_tables, batch.block_tables)
    bound.forward(key.repeat_interleave(2, 1), key, value, backend.plan(whole))
    key, value = (
        part.unflatten(0, (case.num_sequences, -1))[:, -case.num_new :].flatten(0, 1)
        for part in (key, value)
    )
    return bound.forward(query, key, value, backend.plan(batch))


class TestBareAttention:
    """One that runs on CUDA, with a function of this module in place of its own."""

    layer = replace(LAYER, device="cuda:0")
    called = BareAttention("some", __name__)

    def test_says_why_it_cannot_be_called(self) -> None:
        assert self.called.problem(self.layer) is None
        assert self.called.problem(LAYER) == "it needs a CUDA device, and the layers are on cpu"
        for missing in ("no_such_module", "json"):
            reason = BareAttention("some", missing).problem(self.layer) or ""
            assert f"{missing} cannot be imported" in reason

    def test_is_told_where_each_sequence_begins(self) -> None:
        rows, named = self.called.run(AttentionCase.parse("3x4+2"), LAYER)()
        assert [tuple(part.shape) for part in rows] == [(6, 4, 8), (18, 2, 8), (18, 2, 8)]
        assert named.pop("cu_seqlens_q").tolist() == [0, 2, 4, 6]
        assert named.pop("cu_seqlens_k").tolist() == [0, 6, 12, 18]
        assert named == {"max_seqlen_q": 2, "max_seqlen_k": 6, "causal": True}


def flash_attn_varlen_func(*rows: torch.Tensor, **named: Any) -> Any:
    """In place of a function for sequences of several lengths."""
    return rows, named


def test_one_that_fails_does_not_take_the_others(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no more registers\nat line 3")

    argv = [*SMALL, "--bare", "--backends", "torch", "--batch", "2x9"]
    monkeypatch.setattr("paged_plugins.bench.attention_case.BareSdpa.run", lambda *_: fails)
    rows = json.loads(run(capsys, *argv, "--json"))["rows"]  # a library is no component
    assert [row["component"] for row in rows] == ["torch", "bare sdpa"]
    assert rows[1]["error"] == "RuntimeError: no more registers"
    monkeypatch.setattr(TorchAttention, "bind", fails)
    assert "torch, batch 2x9+1 failed: RuntimeError" in run(capsys, *argv, status=1)


def test_one_that_cannot_be_built_does_not_take_the_others(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("the compiler broke")

    monkeypatch.setattr(TorchAttention, "check", fails)
    registry = Registry.discover()
    others = [each for name, each in registry.of("attention").items() if name != "torch"]
    serving = [each.name for each in others if each.unavailable_reason() is None]
    if "cpu" not in serving:
        pytest.skip("torch is the only component here")
    found = json.loads(run(capsys, *SMALL, "--batch", "2x9", "--json", status=1))
    reasons = {one["component"]: one["reason"] for one in found["refused"]}
    assert reasons["torch"] == "it failed: OSError: the compiler broke"
    assert "cpu" in {row["component"] for row in found["rows"]}


def test_the_component_of_the_settings_is_measured_alone(capsys: Capture) -> None:
    found = json.loads(run(capsys, *SMALL, "--batch", "1x3", "--attention", "torch", "--json"))
    assert [row["component"] for row in found["rows"]] == ["torch"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--batch", "3by4"), "SEQUENCES|give the number of sequences"),
        (("--batch", "0x4"), "give the number of sequences"),
        (("--backends", "torsch"), "torch"),
        (("--heads", "3:2:8"), "not a multiple"),
        (("--heads", "4x2x8"), "such as 16:8:128"),
        (("--heads", "0:2:8"), "such as 16:8:128"),
        (("--backends", "cpu", "--dtype", "float16"), "cpu"),
        pytest.param(("--device", "cuda"), "finds no CUDA device", marks=WITHOUT_GPU),
    ],
)
def test_what_is_refused(capsys: Capture, argv: tuple[str, ...], said: str) -> None:
    err = run(capsys, *argv, status=2)
    assert any(part in err for part in said.split("|"))


def test_bytes_and_operations_are_those_of_the_formulas() -> None:
    case, layer = AttentionCase.parse("3x10+2"), LAYER
    assert case.read_bytes(layer, 0) == 3 * 12 * 2 * 2 * 8 * 4
    assert case.read_bytes(layer, 8) == (3 * 4 + 8) * 2 * 2 * 8 * 4
    # two queries that see 11 and 12 keys, two products of multiplications and additions
    assert case.operations(layer) == 3 * (11 + 12) * 4 * 8 * 2 * 2
    with pytest.raises(SettingsError):
        AttentionCase.parse("3x10+0")


def test_sequences_share_whole_blocks_and_own_the_others() -> None:
    batch, num_blocks = AttentionCase.parse("3x11+2").batch(LAYER, 10)
    tables = batch.block_tables
    assert (tables[:, :2] == tables[0, :2]).all()
    own = tables[:, 2:].flatten().tolist()
    assert len(set(own)) == len(own)
    assert int(tables.max()) < num_blocks
    assert torch.equal(
        batch.slot_mapping.view(3, 2),
        torch.stack([tables[:, 2] * 4 + 3, tables[:, 3] * 4], dim=1).long(),
    )
