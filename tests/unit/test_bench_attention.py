"""``bench attention``: what it prints and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_core.interfaces.layer import LayerSpec
from paged_plugins.bench.attention_case import AttentionCase

Capture = pytest.CaptureFixture[str]

SMALL = (
    *("--num-heads", "4", "--num-kv-heads", "2", "--head-dim", "8", "--block-size", "4"),
    *("--dtype", "float32", "--repeats", "2"),
)


def run(capsys: Capture, *argv: str, status: int = 0) -> str:
    assert main(["bench", "attention", *argv]) == status
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return err if status else out


def test_a_row_for_every_batch_and_component(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    argv = ("--batch", "3x20", "--batch", "2x0+6", "--shared-prefix", "9", "--output", str(file))
    found: dict[str, Any] = json.loads(run(capsys, *SMALL, *argv, "--json"))
    assert json.loads(file.read_text()) == found
    assert set(found) == {"machine", "refused", "rows"}
    served = {row["attention"] for row in found["rows"]}
    assert "torch" in served
    assert not served & set(found["refused"])
    expected = [("3x20+1", 9), ("2x0+6", 0)]
    assert [(row["batch"], row["shared_prefix"]) for row in found["rows"]] == [
        case for case in expected for _ in served
    ]
    assert all(row["us_per_layer"] > 0 for row in found["rows"])
    assert all(row["bytes_per_s"] > 0 < row["operations_per_s"] for row in found["rows"])


def test_a_table(capsys: Capture) -> None:
    out = run(capsys, *SMALL, "--batch", "1x3", "--backends", "torch")
    assert "1x3+1" in out
    assert "us per layer" in out


def test_the_component_of_the_settings_is_measured_alone(capsys: Capture) -> None:
    found = json.loads(run(capsys, *SMALL, "--batch", "1x3", "--attention", "torch", "--json"))
    assert [row["attention"] for row in found["rows"]] == ["torch"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--batch", "3by4"), "SEQUENCES|give the number of sequences"),
        (("--batch", "0x4"), "give the number of sequences"),
        (("--backends", "torsch"), "torch"),
        (("--num-heads", "3", "--num-kv-heads", "2"), "not a multiple"),
        (("--backends", "cpu", "--dtype", "float16"), "cpu"),
    ],
)
def test_what_is_refused(capsys: Capture, argv: tuple[str, ...], said: str) -> None:
    err = run(capsys, *argv, status=2)
    assert any(part in err for part in said.split("|"))


def test_bytes_and_operations_are_those_of_the_formulas() -> None:
    layer = LayerSpec(
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        scale=1.0,
        dtype="float32",
        device="cpu",
        block_size=4,
    )
    case = AttentionCase.parse("3x10+2")
    assert case.read_bytes(layer, 0) == 3 * 12 * 2 * 2 * 8 * 4
    assert case.read_bytes(layer, 8) == (3 * 4 + 8) * 2 * 2 * 8 * 4
    # two queries that see 11 and 12 keys, two products of multiplications and additions
    assert case.operations(layer) == 3 * (11 + 12) * 4 * 8 * 2 * 2
    with pytest.raises(SettingsError):
        AttentionCase.parse("3x10+0")


def test_sequences_share_whole_blocks_and_own_the_others() -> None:
    layer = LayerSpec(
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        scale=1.0,
        dtype="float32",
        device="cpu",
        block_size=4,
    )
    batch, num_blocks = AttentionCase.parse("3x11+2")._batch(layer, 10)
    tables = batch.block_tables
    assert (tables[:, :2] == tables[0, :2]).all()
    own = tables[:, 2:].flatten().tolist()
    assert len(set(own)) == len(own)
    assert int(tables.max()) < num_blocks
    assert torch.equal(
        batch.slot_mapping.view(3, 2),
        torch.stack([tables[:, 2] * 4 + 3, tables[:, 3] * 4], dim=1).long(),
    )
