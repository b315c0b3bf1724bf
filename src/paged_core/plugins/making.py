"""Components, made of their options and a context; what ``auto`` tries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from paged_core.errors import (
    PagedCoreError,
    PluginError,
    SettingsError,
    UnsupportedModel,
    error_text,
)
from paged_core.log import get_logger
from paged_core.plugins.fit import uncallable

if TYPE_CHECKING:
    from paged_core.plugins.component import ComponentSettings
    from paged_core.plugins.registry import Registry

_log = get_logger()

Part = TypeVar("Part")


def make_component(
    registry: Registry, slot: str, options: ComponentSettings, context: Any = ...
) -> Any:
    """Build the component of ``slot`` that ``options`` name.

    Args:
        context: ``...``: factories of this slot get the options alone.

    Raises:
        PluginError: it cannot be imported, its own code raised an error that is not ours, or its
            factory or its methods cannot be called as the slot's interface says.
        SettingsError: its check gives a reason, or raises.
    """
    record = registry.get(slot, options.name)
    if record.check and (reason := record.unavailable_reason(options)):
        raise SettingsError(f"{slot} {options.name!r} cannot be used here: {reason}")
    factory = record.load()
    if isinstance(factory, type):
        registry.refuse_misfit(slot, options.name, factory)
    given = {"options": options} if context is ... else {"options": options, "context": context}
    with blaming(registry, slot, options, "made"):
        if problem := uncallable(factory, given):
            raise TypeError(problem)
        made = factory(*given.values())
    registry.refuse_misfit(slot, options.name, made)
    return made


@contextmanager
def blaming(registry: Registry, slot: str, options: ComponentSettings, done: str) -> Iterator[None]:
    """Name a component whose code raises an error that is not ours; ``done``: what it could not
    be."""
    try:
        yield
    except (PagedCoreError, OSError, MemoryError):
        raise
    except Exception as error:
        owner = registry.provider(slot, options.name)
        raise PluginError(
            f"{slot} {options.name!r}, of {owner}, could not be {done}: {error_text(error)}"
        ) from error


def choose(
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
                reason = error.problem
            else:
                _log.info("component_chosen", slot=slot, name=component.name, refused=refusals)
                return part
        refusals[component.name] = reason
    alike: dict[str, list[str]] = {}  # of those with the same reason
    for name, reason in refusals.items():
        alike.setdefault(reason, []).append(name)
    listed = "; ".join(f"{' and '.join(names)}: {reason}" for reason, names in alike.items())
    raise UnsupportedModel(f"no {slot} can serve this model here: {listed or 'none installed'}")
