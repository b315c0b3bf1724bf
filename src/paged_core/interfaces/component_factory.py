"""One component from its options: the one that settings name, or the best that can serve here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from paged_core.errors import PagedCoreError, PluginError, SettingsError, UnsupportedModel
from paged_core.interfaces.attention import AttentionBackend, AttentionParts
from paged_core.interfaces.layer import LayerSpec
from paged_core.interfaces.runner import Runner, RunnerParts
from paged_core.log import get_logger
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry

if TYPE_CHECKING:
    from paged_core.settings.schema import EngineSettings

_log = get_logger()

Part = TypeVar("Part")


def make_component(registry: Registry, slot: str, options: ComponentSettings, parts: Any) -> Any:
    """Build the component of ``slot`` that ``options`` name.

    Raises:
        PluginError: it cannot be imported, or its own code raised an error that is not ours.
    """
    factory = registry.get(slot, options.name).load()
    try:
        return factory(options, parts)
    except (PagedCoreError, OSError, MemoryError):
        raise
    except Exception as error:
        owner = registry.provider(slot, options.name)
        raise PluginError(
            f"{slot} {options.name!r}, of {owner}, could not be made: "
            f"{type(error).__name__}: {error}"
        ) from error


def make_runner(
    settings: EngineSettings, registry: Registry, *, rank: int = 0, size: int = 1
) -> Runner:
    """Build and load the chosen runner, or the best one that can run the model.

    Args:
        rank: of this process among ``size`` that compute each step together.

    Raises:
        SettingsError: the chosen one cannot be used here.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
    """

    def load(options: ComponentSettings) -> Runner:
        parts = RunnerParts(settings=settings, rank=rank, size=size)
        runner: Runner = make_component(registry, "runner", options, parts)
        runner.load()
        return runner

    return _choose(registry, "runner", settings.runner, load)


def make_attention(
    settings: EngineSettings, registry: Registry, layers: Sequence[LayerSpec]
) -> AttentionBackend:
    """Build the chosen attention backend, or the best one that serves all of ``layers``.

    Raises:
        SettingsError: the chosen one cannot be used here.
        UnsupportedModel: it does not serve these layers; the message says which feature it lacks.
    """

    def check(options: ComponentSettings) -> AttentionBackend:
        backend: AttentionBackend = make_component(
            registry, "attention", options, AttentionParts(settings=settings, registry=registry)
        )
        for layer in dict.fromkeys(layers):
            reason = backend.check(layer)
            if reason:
                raise UnsupportedModel(f"attention {options.name!r} cannot serve it: {reason}")
        return backend

    return _choose(registry, "attention", settings.attention, check)


def _choose(
    registry: Registry,
    slot: str,
    options: ComponentSettings,
    build: Callable[[ComponentSettings], Part],
) -> Part:
    """Build what ``options`` name; for ``auto`` the candidate of highest rank that serves."""
    if options.name != "auto":
        reason = registry.get(slot, options.name).unavailable_reason(options)
        if reason:
            raise SettingsError(f"{slot} {options.name!r} cannot be used here: {reason}")
        return build(options)
    refusals: dict[str, str] = {}
    for component in registry.candidates(slot):
        reason = component.unavailable_reason()
        if reason is None:
            try:
                part = build(component.settings.model_validate({}))
            except UnsupportedModel as error:
                reason = str(error)
            else:
                _log.info("component_chosen", slot=slot, name=component.name, refused=refusals)
                return part
        refusals[component.name] = reason
    alike: dict[str, list[str]] = {}  # of those with the same reason
    for name, reason in refusals.items():
        alike.setdefault(reason, []).append(name)
    listed = "; ".join(f"{' and '.join(names)}: {reason}" for reason, names in alike.items())
    raise UnsupportedModel(f"no {slot} can serve this model here: {listed or 'none installed'}")
