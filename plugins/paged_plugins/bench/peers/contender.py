"""What is compared: an engine that has a model loaded and completes token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paged_plugins.bench.workloads import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a contender is to load."""

    model: str
    """A folder, or a hub id."""
    dtype: str
    """``bfloat16``, ``float16`` or ``float32``."""
    threads: int
    max_model_len: int
    longest_request: int
    """Tokens, prompt and generated, of the longest request that will come."""
    """Tokens of the longest request, its prompt and its output, or more."""
    cache_gib: int
    """GiB of keys and values, for peers that are told how much to keep."""
    settings: dict[str, Any]
    """Of our own engine."""


class Contender(ABC):
    """An engine with its model loaded; it decodes greedily, whatever ends a sequence.

    A subclass imports its package in ``__init__``: the class itself is also asked where that
    package is not installed.
    """

    version: str
    vocab_size: int | None = None
    """Token ids are below it, if the engine says so."""

    @abstractmethod
    def __init__(self, task: Task) -> None:
        """Load the model."""

    @staticmethod
    def environment(task: Task, prefix: str) -> dict[str, str]:
        """Return variables that must be set before the contender's process starts.

        Args:
            prefix: ``sys.prefix`` of the Python that runs it.
        """
        return {}

    @staticmethod
    def missing(model: str, dtype: str) -> str | None:
        """Return which file a peer lacks beside the model, and how to make it; ``None``: none."""
        return None

    def prepare(self, num_sequences: int, num_tokens: int) -> None:  # noqa: B027 - few need it
        """Get ready, unmeasured, for requests of such sizes.

        Args:
            num_sequences: requests that run at once.
            num_tokens: of the longest of them, prompt and output.
        """

    @abstractmethod
    def run(self, items: Sequence[Item], /) -> list[list[int]]:
        """Return the tokens that each item generates; their prompts are full ones."""
