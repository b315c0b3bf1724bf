"""Choosing the next tokens: vectorised over the batch, and independent of how it was scheduled."""

from paged_backends.sampling.row import Row
from paged_backends.sampling.sampler import Draws, Sampler

__all__ = ["Draws", "Row", "Sampler"]
