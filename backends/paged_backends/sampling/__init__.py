"""Sampling the next tokens: vectorised over the batch, and independent of how it was scheduled."""

from paged_backends.sampling.random_sampling import (
    RandomSample,
    kernel_random_sample,
    random_sample,
)
from paged_backends.sampling.row import Row
from paged_backends.sampling.sampler import SampledTokens, Sampler

__all__ = [
    "RandomSample",
    "Row",
    "SampledTokens",
    "Sampler",
    "kernel_random_sample",
    "random_sample",
]
