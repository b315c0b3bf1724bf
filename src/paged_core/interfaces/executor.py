"""Slot ``executor``: where the model runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paged_core.interfaces import component_factory
from paged_core.step import StepInput, StepResult

if TYPE_CHECKING:
    from paged_core.engine.clock import Clock
    from paged_core.interfaces.attention import AttentionBackend
    from paged_core.interfaces.layer import LayerSpec
    from paged_core.interfaces.runner import Runner
    from paged_core.interfaces.tokenizer import Tokenizer
    from paged_core.plugins.registry import Registry
    from paged_core.settings.schema import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorParts:
    """What the factory of an executor gets beside its options: data that can be pickled, so that
    an executor can build the model and the attention in another process."""

    settings: EngineSettings
    registry: Registry
    needs_host_blocks: bool
    """Whether the chosen preemption may swap."""
    clock: Callable[[], float] | None = None
    """The engine's clock, if its caller gave one."""
    rank: int = 0
    """Which of the processes that compute each step together this one is."""
    size: int = 1
    """How many these are."""

    def make_runner(self) -> Runner:
        """As :func:`~paged_core.interfaces.component_factory.make_runner`."""
        return component_factory.make_runner(
            self.settings, self.registry, rank=self.rank, size=self.size
        )

    def make_attention(self, layers: Sequence[LayerSpec]) -> AttentionBackend:
        """As :func:`~paged_core.interfaces.component_factory.make_attention`."""
        return component_factory.make_attention(self.settings, self.registry, layers)


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
    remote: bool = False
    """Whether steps are sent to another process: a request whose logits processors cannot be
    pickled is then refused when it is added."""


class Executor(ABC):
    """Runs steps. It keeps a copy of every running sequence, which steps update by changes only."""

    runs_in_background: bool = False
    """Whether :meth:`submit` returns before the step has run: then ``async_scheduling: auto`` plans
    the next one meanwhile."""

    @abstractmethod
    def start(self) -> Capacity:
        """Load the model, allocate the cache, and return what fits.

        After ``ExecutorLost`` it is called again, and must offer the same capacity.

        Raises:
            CheckpointError, UnsupportedModel, SettingsError: from the runner or the backend.
        """

    @abstractmethod
    def submit(self, step: StepInput, /) -> Any:
        """Start a step; return a handle for :meth:`collect`. Steps run in order of submission.

        With ``async_scheduling`` the next step is submitted before this one is collected.
        """

    @abstractmethod
    def collect(self, handle: Any, /) -> StepResult:
        """Wait for a step. If it raises, the engine ends every request in that step.

        Raises:
            ExecutorLost: as from :meth:`submit`: model and cache are gone. The engine ends all
                requests, and the next step starts the executor again.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all memory and processes; calling it again does nothing."""


@runtime_checkable
class SupportsText(Protocol):
    """An executor whose model has a tokenizer."""

    def tokenizer(self) -> Tokenizer | None:
        """Return it, or ``None`` if the checkpoint has none and serves token ids only."""


@runtime_checkable
class SupportsClock(Protocol):
    """An executor whose steps take time on a clock of their own: a simulation."""

    @property
    def clock(self) -> Clock:
        """The clock that the engine uses too, unless its caller gave another one."""
