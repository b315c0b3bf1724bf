"""Choosing the next tokens: vectorised over the batch, and independent of how it was scheduled."""

from paged_backends.sampling.choice import Choose, choose
from paged_backends.sampling.kernel_choice import kernel_choice
from paged_backends.sampling.row import Row
from paged_backends.sampling.sampler import Draws, Sampler

__all__ = ["Choose", "Draws", "Row", "Sampler", "choose", "kernel_choice"]
