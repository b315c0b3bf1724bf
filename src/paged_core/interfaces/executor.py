"""Slot ``executor``: where the model runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paged_core.step import StepInput, StepResult

if TYPE_CHECKING:
    from paged_core.interfaces.attention import AttentionBackend
    from paged_core.interfaces.layer import LayerSpec
    from paged_core.interfaces.runner import Runner
    from paged_core.interfaces.tokenizer import Tokenizer
    from paged_core.settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorParts:
    """What the factory of an executor gets beside its options."""

    settings: EngineSettings
    needs_host_blocks: bool
    """Whether the chosen preemption may swap."""
    make_runner: Callable[[], Runner]
    """Builds and loads the chosen runner, or the best one that can run the model."""
    make_attention: Callable[[Sequence[LayerSpec]], AttentionBackend]
    """Builds the chosen backend, or the best one that serves all these layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an executor can hold, once started."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int
    vocab_size: int | None = None
    """Token ids are below it; ``None``: any token id is served."""
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end a sequence unless it asks to ignore them."""


class Executor(ABC):
    """Runs steps. It keeps its own copy of every sequence it was told of, fed by changes only."""

    runs_in_background: bool = False
    """Whether :meth:`submit` returns before the step has run: then ``async_scheduling: auto`` plans
    the next one meanwhile."""

    @abstractmethod
    def start(self) -> Capacity:
        """Load the model, set up the cache, and say what fits.

        Raises:
            CheckpointError, UnsupportedModel, SettingsError: as the runner and the backend do.
        """

    @abstractmethod
    def submit(self, step: StepInput, /) -> Any:
        """Start a step; return a handle for :meth:`collect`. Steps run in order of submission.

        With ``async_scheduling`` the next step is submitted before this one is collected.
        """

    @abstractmethod
    def collect(self, handle: Any, /) -> StepResult:
        """Wait for a step. If it raises, every sequence of that step is given up by the engine."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; calling it again does nothing."""


@runtime_checkable
class SupportsText(Protocol):
    """An executor whose model has a tokenizer."""

    def tokenizer(self) -> Tokenizer | None:
        """Return it, or ``None`` if the checkpoint has none and serves token ids only."""
