"""Drawing by chance with our own kernel for CPUs: one pass over a row, and little to sort."""

from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.sampling.choice import Choose, Noise
from paged_backends.sampling.row import Row


def kernel_choice(kernels: Kernels) -> Choose:
    """Return the kernel as a function that chooses."""

    def choose(logits: Tensor, rows: list[Row], noise: Noise) -> list[int]:
        choices = [
            (params.temperature, params.min_p, params.top_k, params.top_p, noise(row))
            for row, params in ((row, row.sampling) for row in rows)
        ]
        tokens: list[int] = kernels.draw(
            logits, torch.tensor(choices, dtype=torch.float64)
        ).tolist()
        return tokens

    return choose
