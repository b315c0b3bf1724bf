"""The interface of an engine in a comparison: it loads a model and completes token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paged_plugins.bench.workloads import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an engine is to load."""

    model: str
    """A folder, or a hub id."""
    dtype: str
    """``bfloat16``, ``float16`` or ``float32``."""
    threads: int
    max_model_len: int
    longest_request: int
    """Tokens of the longest request, prompt and output."""
    cache_gib: int
    """GiB of KV cache, for peers that need to be told."""
    settings: dict[str, Any]
    """Settings of our own engine."""
    device: str = "cpu"
    """As torch names it, for peers that need to be told."""
    temperature: float = 0.0
    """0: greedy."""
    write_cache: bool = False
    """Whether our own engine writes all of its cache before it is ready."""


class PeerEngine(ABC):
    """An engine with its model loaded; it ignores end-of-sequence tokens.

    A subclass imports its package in ``__init__``: its static methods also run where that package
    is not installed.
    """

    version: str
    vocab_size: int | None = None
    """Size of the vocabulary, if the engine reports it."""
    cache_written: bool | None = None
    """Whether all of its cache was written before anything is measured; ``None``: not known."""

    @abstractmethod
    def __init__(self, task: Task) -> None:
        """Load the model."""

    @staticmethod
    def environment(task: Task, prefix: str) -> dict[str, str]:
        """Return variables that must be set before the engine's process starts.

        Args:
            prefix: ``sys.prefix`` of the Python that runs it.
        """
        return {}

    @staticmethod
    def missing(model: str, dtype: str) -> str | None:
        """Return which file is missing beside the model, and how to make it; ``None``: none."""
        return None

    @staticmethod
    def problem(temperature: float) -> str | None:
        """Return why it cannot decode at this temperature; ``None``: it can."""
        return "it is run greedily only" if temperature else None

    def prepare(self, num_sequences: int, num_tokens: int) -> None:  # noqa: B027 - few need it
        """Prepare, unmeasured, for requests of these sizes.

        Args:
            num_sequences: requests that run at once.
            num_tokens: tokens of the longest request, prompt and output.
        """

    @abstractmethod
    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Return the tokens that each item generates; the prompts are complete."""

    def close(self) -> None:  # noqa: B027 - few need it
        """End what would keep the process alive."""
