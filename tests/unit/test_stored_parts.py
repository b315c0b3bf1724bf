"""Codes and scales of quantised weights, which transformers multiplies whatever they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from paged_backends.checkpoint.folder import Checkpoint
from paged_backends.runners.transformers.stored_parts import check_parts
from paged_core.errors import CheckpointError

CODES, SCALES = "a.weight", "a.weight_scale_inv"
BLOCKS, BYTES = "a.down_proj_blocks", "a.down_proj_scales"
WHOLE: dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]] = {
    "fp8": {
        CODES: (torch.float8_e4m3fn, (130, 64)),
        SCALES: (torch.float32, (2, 1)),
        "b.weight": (torch.bfloat16, (130, 64)),
    },
    "mxfp4": {
        BLOCKS: (torch.uint8, (4, 6, 2, 16)),
        BYTES: (torch.uint8, (4, 6, 2)),
        "a.up_proj": (torch.bfloat16, (4, 6, 64)),
    },
}


def check(folder: Path, method: str, changes: dict[str, Any], **config: Any) -> None:
    stored = {
        name: torch.zeros(shape, dtype=dtype)
        for name, (dtype, shape) in {**WHOLE[method], **changes}.items()
        if shape is not None
    }
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    described = {"quant_method": method, **config}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "quantization_config": described})
    )
    check_parts(Checkpoint.open(str(folder)))


@pytest.mark.parametrize(
    ("method", "changes", "config"),
    [
        ("fp8", {}, {}),
        ("fp8", {SCALES: (torch.bfloat16, (3, 2))}, {"weight_block_size": [64, 32]}),
        ("fp8", {SCALES: (torch.float32, (1,))}, {"weight_block_size": None}),
        ("mxfp4", {}, {}),
    ],
)
def test_parts_that_belong_together(
    method: str, changes: dict[str, Any], config: dict[str, Any], tmp_path: Path
) -> None:
    check(tmp_path, method, changes, **config)


LACKING = (None, None)


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        ("fp8", {SCALES: LACKING}, f"{CODES} needs {SCALES}, which is not there"),
        ("fp8", {CODES: LACKING}, f"{SCALES} needs {CODES}, which is not there"),
        ("fp8", {CODES: (torch.bfloat16, (130, 64))}, f"{CODES} is stored as BF16, .* F8_E4M3"),
        ("fp8", {CODES: (torch.float8_e5m2, (130, 64))}, "stored as F8_E5M2"),
        ("fp8", {SCALES: (torch.uint8, (2, 1))}, f"{SCALES} is stored as U8, .* F32 or BF16"),
        ("fp8", {SCALES: (torch.float32, (2, 2))}, r"has the shape \(2, 2\), .* \(2, 1\)"),
        ("mxfp4", {BYTES: LACKING}, f"{BLOCKS} needs {BYTES}, which is not there"),
        ("mxfp4", {BLOCKS: LACKING}, f"{BYTES} needs {BLOCKS}, which is not there"),
        ("mxfp4", {BLOCKS: (torch.int8, (4, 6, 2, 16))}, f"{BLOCKS} is stored as I8"),
        ("mxfp4", {BYTES: (torch.float32, (4, 6, 2))}, f"{BYTES} is stored as F32"),
        ("mxfp4", {BYTES: (torch.uint8, (4, 6, 3))}, r"\(4, 6, 2, 16\), .* \(4, 6, 3, 16\)"),
        ("mxfp4", {"a.down_proj": (torch.bfloat16, (4,))}, "is stored beside a.down_proj;"),
    ],
    ids=str,
)
def test_a_part_that_does_not_belong_to_the_other_is_named(
    method: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        check(tmp_path, method, changes)


def test_the_sides_of_blocks_are_numbers(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="weight_block_size must be null or two whole"):
        check(tmp_path, "fp8", {}, weight_block_size=[0, 128])
