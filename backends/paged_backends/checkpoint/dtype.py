"""The dtype that a model computes in."""

from __future__ import annotations

from typing import Any

import torch

from paged_backends.checkpoint.folder import Checkpoint

SMALL_BYTES = 64 << 20
"""Weights that take no more than this as float32 fit the caches of a CPU."""


def choose_dtype(setting: str, checkpoint: Checkpoint, device: torch.device) -> Any:
    """Return what ``from_pretrained`` takes as ``dtype``: a torch dtype, or ``"auto"``.

    ``auto`` is the checkpoint's own dtype, except that a CPU computes in float32 instead of 16 bits
    if it has no instructions for bfloat16, if the dtype is float16, or if the model is so small
    that half the memory traffic does not make it faster. In 16 bits a sum depends on the shape of
    the batch, and with it, now and then, a greedy token.
    """
    if setting != "auto":
        return getattr(torch, setting)
    own = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype") or "")
    if device.type != "cpu" or own.removeprefix("torch.") not in {"bfloat16", "float16"}:
        return "auto"
    num_bytes = 4 * checkpoint.num_weights
    apt = own.endswith("bfloat16") and torch.cpu._is_avx512_bf16_supported()
    return "auto" if apt and num_bytes > SMALL_BYTES else torch.float32
