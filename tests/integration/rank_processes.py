"""A rank in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from integration.step_driver import load_runner, prompt_logits, settings
from paged_backends.communication.gloo import GlooCommunicator
from paged_backends.communication.settings import GlooSettings
from paged_core.engine.contexts import CommunicatorContext, RankGroup


def logits_over_gloo(
    folder: Path, group: RankGroup, rank: int, size: int, prompt: Sequence[int]
) -> list[list[float]]:
    """Return the logits of a prompt, as rank ``rank`` of ``size`` finds them in float32."""
    torch.set_num_threads(1)
    context = CommunicatorContext(group=group, rank=rank, size=size, device="cpu")
    communicator = GlooCommunicator(GlooSettings(), context)
    try:
        runner = load_runner(settings(folder, dtype="float32"), "native", communicator)
        logits: list[list[float]] = prompt_logits(runner, prompt).tolist()
    finally:
        communicator.close()
    return logits
