"""Slot ``executor``: where the model runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paged_core.step import StepInput, StepResult
from paged_core.structured_outputs import StructuredOutputs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from paged_core.interfaces.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity of an executor, once started."""

    num_blocks: int
    num_host_blocks: int
    max_model_len: int
    vocab_size: int | None = None
    """Token ids are below it; ``None``: any token id is served."""
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end a sequence unless it asks to ignore them."""
    remote: bool = False
    """True if steps are sent to another process: a request whose logits processors cannot be
    pickled is then refused when it is added."""
    grammars: bool = False
    """True if it holds outputs to a form, and so :class:`SupportsGrammar`."""


class Executor(ABC):
    """Runs steps. It keeps a copy of every running sequence, which steps update by changes only."""

    runs_in_background: bool = False
    """True if :meth:`submit` returns before the step has run: then ``async_scheduling: auto`` plans
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
class SupportsSamplingDefaults(Protocol):
    """An executor whose model comes with sampling parameters for requests that leave them out."""

    def sampling_defaults(self) -> Mapping[str, Any]:
        """Return them, by the names of ``SamplingParams``, unless settings ask for none."""


@runtime_checkable
class SupportsGrammar(Protocol):
    """An executor that samples by grammars."""

    def compile_grammar(self, form: StructuredOutputs, /) -> Future[None]:
        """Begin to compile a form beside the steps, within a limit of time; any thread may call it.

        The future raises ``RequestError`` if it cannot be compiled. What is compiled is kept for
        the requests to come; a request whose form was not is held up by its first step.
        """


@runtime_checkable
class Clock(Protocol):
    """Seconds since some start, which never go back, and a way to let them pass."""

    def __call__(self) -> float:
        """Return the seconds."""

    def sleep(self, seconds: float, /) -> None:
        """Return when so many seconds have passed on this clock."""


@runtime_checkable
class SupportsClock(Protocol):
    """An executor whose steps take time on a clock of their own: a simulation."""

    @property
    def clock(self) -> Clock:
        """The clock that the engine uses too, unless its caller gave another one."""
