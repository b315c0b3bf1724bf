"""Random sampling with our own kernel for CPUs: one pass over a row, and little to sort."""

from __future__ import annotations

import torch
from torch import Tensor

from paged_backends.kernels.cpu.tensor_kernels import Kernels
from paged_backends.sampling.random_sampling import RandomSample, Uniform
from paged_backends.sampling.row import Row


def kernel_random_sample(kernels: Kernels) -> RandomSample:
    """Return a function that samples with ``kernels``."""

    def random_sample(logits: Tensor, rows: list[Row], uniform: Uniform) -> list[int]:
        params = [
            (asked.temperature, asked.min_p, asked.top_k, asked.top_p, uniform(row))
            for row, asked in ((row, row.sampling) for row in rows)
        ]
        tokens: list[int] = kernels.draw(logits, torch.tensor(params, dtype=torch.float64)).tolist()
        return tokens

    return random_sample
