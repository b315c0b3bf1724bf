"""Contexts: what the factory of a component gets beside its options, by slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from paged_core.errors import PluginError, UnsupportedModel
from paged_core.plugins.making import blaming, choose, make_component

if TYPE_CHECKING:  # listing components imports this, and is to be quick
    from paged_core.cache.kv_cache import KVCache
    from paged_core.engine.preemptor import Preemptor
    from paged_core.interfaces.attention import AttentionBackend
    from paged_core.interfaces.communicator import Communicator, RankGroup
    from paged_core.interfaces.evictor import Evictor
    from paged_core.interfaces.grammar import GrammarBackend, Vocabulary
    from paged_core.interfaces.layer import LayerSpec
    from paged_core.interfaces.length_predictor import LengthPredictor
    from paged_core.interfaces.preemption import Preemption
    from paged_core.interfaces.queue_order import QueueOrder
    from paged_core.interfaces.runner import Runner
    from paged_core.interfaces.victim import Victim
    from paged_core.plugins.component import ComponentSettings
    from paged_core.plugins.registry import Registry
    from paged_core.requests.lookup_oracle import LookupOracle
    from paged_core.settings.schema import EngineSettings


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes components as settings choose them, of slots that are ``makeable``."""

    settings: EngineSettings
    registry: Registry

    def __call__(self, slot: str, /) -> Any:
        """As :meth:`Context.make`."""
        registry = self.registry
        registry.of(slot)  # or there is none
        if not registry.slots[slot].makeable:
            raise PluginError(
                f"make({slot!r}): paged-core itself makes components of this slot; ask for one of "
                "a slot that a package brings"
            )
        context = SlotContext(settings=self.settings, maker=self)
        build = partial(make_component, registry, slot, context=context)
        chosen = getattr(self.settings, slot)
        if registry.slots[slot].many:
            return [choose(registry, slot, each, build) for each in chosen]
        return None if chosen is None else choose(registry, slot, chosen, build)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Base of contexts: makes components of other slots."""

    maker: Maker | None = None
    """``None``: it was made by hand, without settings."""

    def make(self, slot: str, /) -> Any:
        """Make what the settings choose for ``cost_model`` or a slot that a package brings.

        The result is a component of the caller's own; a list, where the slot is of ``many``;
        ``None``, where nothing is chosen.

        Raises:
            PluginError: there is no such slot, paged-core itself makes its components, or the
                component cannot be made.
            SettingsError: it cannot be used here.
        """
        if self.maker is None:
            raise PluginError(f"make({slot!r}): give this context maker=Maker(settings, registry)")
        return self.maker(slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotContext(Context):
    """Parts of a component of a slot that a package brings."""

    settings: EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorContext(Context):
    """Parts of a ``block_allocator``."""

    num_blocks: int
    block_size: int
    max_model_len: int
    evictor: Evictor


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictorContext(Context):
    """Parts of an ``evictor``."""

    num_blocks: int
    block_size: int
    seed: int
    """Seed of the engine, for an evictor that chooses at random."""
    future: LookupOracle | None = None
    """Look-ups to come, in a replay; ``None``: they are not known, as in any live engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderContext(Context):
    """Parts of a ``queue_order``."""

    kv_cache: KVCache
    length_predictor: LengthPredictor | None = None
    """Shared by an engine's policies; ``None``: nothing is known, in a context made by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionContext(Context):
    """Parts of an ``admission``."""

    settings: EngineSettings
    length_predictor: LengthPredictor | None = None
    """As of :class:`OrderContext`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VictimContext(Context):
    """Parts of a ``victim``."""

    kv_cache: KVCache
    length_predictor: LengthPredictor | None = None
    """As of :class:`OrderContext`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionContext(Context):
    """Parts of a ``preemption``."""

    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerContext(Context):
    """Parts of a ``scheduler``."""

    kv_cache: KVCache
    queue_order: QueueOrder
    victim: Victim
    preemption: Preemption
    preemptor: Preemptor
    """Preempts by the mode of ``preemption``, and resumes."""
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionContext(Context):
    """Parts of an ``attention`` backend."""

    settings: EngineSettings
    registry: Registry | None = None
    """Where a backend made of others finds them; ``None``: among what is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicatorContext(Context):
    """Parts of a ``communicator``."""

    group: RankGroup
    rank: int
    size: int
    device: str
    """Device of the tensors, as torch names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerContext(Context):
    """Parts of a ``runner``."""

    settings: EngineSettings
    rank: int = 0
    """Which of the processes that compute each step together this one is; its device depends on
    it."""
    size: int = 1
    """Number of these processes."""
    communicator: Communicator | None = None
    """Between these processes; ``None``: there is one. A runner that is given one computes its
    share of the heads, and returns the same hidden states on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarContext(Context):
    """Parts of a ``grammar``."""

    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverContext(Context):
    """Parts of one of the ``observers``."""

    settings: EngineSettings
    num_blocks: int
    kv_cache: KVCache
    """To be read, between steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorContext(Context):
    """Parts of an ``executor``: data that can be pickled, so that it can build the model and the
    attention in another process."""

    settings: EngineSettings
    registry: Registry
    needs_host_blocks: bool
    """True if the chosen preemption may swap."""
    clock: Callable[[], float] | None = None
    """The engine's clock, if its caller gave one."""
    rank: int = 0
    """Which of the processes that compute each step together this one is."""
    size: int = 1
    """Number of these processes."""
    group: RankGroup | None = None
    """Group of these processes; ``None``: there is one."""

    def make_communicator(self, device: str) -> Communicator | None:
        """Join the group of ranks; ``None``: there is no other rank.

        Raises:
            SettingsError: the chosen communicator cannot be used here.
            ExecutorLost: not all ranks have come in time.
        """
        if self.group is None:
            return None
        registry, options = self.registry, self.settings.communicator
        context = CommunicatorContext(
            group=self.group,
            rank=self.rank,
            size=self.size,
            device=device,
            maker=Maker(self.settings, registry),
        )
        build = partial(make_component, registry, "communicator", context=context)
        communicator: Communicator = choose(registry, "communicator", options, build)
        return communicator

    def make_runner(self, communicator: Communicator | None = None) -> Runner:
        """Build and load the chosen runner, or the best one that can run the model.

        Raises:
            SettingsError: the chosen one cannot be used here.
            CheckpointError, UnsupportedModel: the model cannot be loaded.
        """
        settings, registry = self.settings, self.registry
        context = RunnerContext(
            settings=settings,
            rank=self.rank,
            size=self.size,
            communicator=communicator,
            maker=Maker(settings, registry),
        )

        def load(options: ComponentSettings) -> Runner:
            runner: Runner = make_component(registry, "runner", options, context)
            with blaming(registry, "runner", options, "loaded"):
                runner.load()
            return runner

        return choose(registry, "runner", settings.runner, load)

    def make_attention(self, layers: Sequence[LayerSpec]) -> AttentionBackend:
        """As :func:`make_attention`."""
        return make_attention(self.settings, self.registry, layers)

    def make_grammar(self, vocabulary: Vocabulary) -> GrammarBackend:
        """Build the chosen grammar; ``SettingsError``: it cannot be used here."""
        options, maker = self.settings.grammar, Maker(self.settings, self.registry)
        context = GrammarContext(vocabulary=vocabulary, maker=maker)
        build = partial(make_component, self.registry, "grammar", context=context)
        backend: GrammarBackend = choose(self.registry, "grammar", options, build)
        return backend


def make_attention(
    settings: EngineSettings, registry: Registry, layers: Sequence[LayerSpec]
) -> AttentionBackend:
    """Build the chosen attention backend, or the best one that serves all of ``layers``.

    Raises:
        SettingsError: the chosen one cannot be used here.
        UnsupportedModel: it does not serve these layers; the message says which feature it lacks.
    """

    def check(options: ComponentSettings) -> AttentionBackend:
        maker = Maker(settings, registry)
        context = AttentionContext(settings=settings, registry=registry, maker=maker)
        backend: AttentionBackend = make_component(registry, "attention", options, context)
        for layer in dict.fromkeys(layers):
            with blaming(registry, "attention", options, "asked about a layer"):
                reason = backend.check(layer)
            if reason:
                raise UnsupportedModel(f"attention {options.name!r} cannot serve it: {reason}")
        return backend

    return choose(registry, "attention", settings.attention, check)
