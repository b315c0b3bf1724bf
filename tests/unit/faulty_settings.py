"""Options of components that are wrong on purpose, and such components from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from paged_core.interfaces.scheduler import StepLimits
from paged_core.plugins.component import Component, ComponentSettings, Slot
from paged_core.plugins.registry import Registry
from paged_core.sequence import SequenceGroup
from paged_policies.allocators.contiguous import ContiguousSettings
from paged_policies.allocators.hash_cached import HashCachedSettings
from paged_policies.schedulers.token_budget import TokenBudgetSettings
from paged_testing.engines import registry_with


class FaultySettings(ComponentSettings):
    """Options of a component that is wrong."""

    name: Literal["faulty"] = "faulty"


class FaultyLimitSettings(ComponentSettings):
    """Options of a component that is wrong with some of them."""

    name: Literal["faulty"] = "faulty"
    limit: PositiveInt = Field(default=100, description="a number")


class FaultyPairSettings(ComponentSettings):
    """Options of a component that is wrong with one beside another."""

    name: Literal["faulty"] = "faulty"
    swaps: bool = Field(default=True, description="whether it swaps")
    reserved: NonNegativeInt = Field(default=4, description="tokens")


class FaultyShareSettings(ComponentSettings):
    """Options of a component that does not go by them."""

    name: Literal["faulty"] = "faulty"
    unread_share: PositiveInt = Field(default=3, description="a number")


class FaultyMarkSettings(ComponentSettings):
    """Options of a parser whose mark can be chosen."""

    name: Literal["faulty"] = "faulty"
    mark: str = Field(default="<tool_call>", min_length=1, description="what begins a call")


class FaultyPathSettings(ComponentSettings):
    """Options of a component that writes a file."""

    name: Literal["faulty"] = "faulty"
    path: Path = Field(default=Path("faulty.txt"), description="a file")


class FaultyOpenSettings(ComponentSettings):
    """Options of a component that accepts any number."""

    name: Literal["faulty"] = "faulty"
    limit: int = Field(default=100, description="a number")


class FaultyHashCachedSettings(HashCachedSettings):
    """Options of ``hash_cached``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class FaultyContiguousSettings(ContiguousSettings):
    """Options of ``contiguous``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class FaultyTokenBudgetSettings(TokenBudgetSettings):
    """Options of ``token_budget``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class FaultyStepSettings(FaultyTokenBudgetSettings):
    """Options of ``token_budget`` that state less than it computes."""

    @property
    def step_limits(self) -> StepLimits:
        return StepLimits(num_tokens=self.max_num_batched_tokens - 1)


class FaultyBudgetSettings(ComponentSettings):
    """Options of a scheduler that say nothing of how prompts are cut."""

    name: Literal["faulty"] = "faulty"
    max_num_batched_tokens: PositiveInt = Field(default=2048, description="tokens of a step")
    max_num_seqs: PositiveInt = Field(default=256, description="sequences that run")


def registry_of(
    slot: str,
    made: type,
    settings: type[ComponentSettings] = FaultySettings,
    check: str | None = None,
) -> Registry:
    """A registry of everything installed, and of a class as the component ``faulty``."""
    factory = f"{made.__module__}:{made.__name__}"
    component = Component(slot, settings, factory, summary="wrong", check=check)
    version = registry_with().slots[slot].version
    part = Component("faulty_part", FaultyLimitSettings, f"{__name__}:Part", summary="a part")
    slot_of_its_own = Slot("faulty_part", f"{__name__}:Part", "faulty", summary="parts")
    more = (slot_of_its_own, part) if "Part" in made.__name__ else ()
    return registry_with(replace(component, interface_version=version), *more)


class Part:
    """A component of a slot of a package's own."""

    def __init__(self, options: FaultyLimitSettings, context: Any, /) -> None:
        self.limit = options.limit


def with_another(
    module: str, base: type, member: str, values: Mapping[str, Any]
) -> dict[str, type]:
    """Return subclasses of ``base`` by their names, each with another value for one member."""
    return {
        name: type(name, (base,), {"__module__": module, member: value})
        for name, value in values.items()
    }


def forever(asks: Callable[..., bool], answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that never ends when it is called with what ``asks`` finds."""

    def method(self: Any, *args: Any) -> Any:
        while asks(*args):
            pass
        return answer(self, *args)

    return method


def meddling(
    change: Callable[[SequenceGroup], object], answer: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a method that changes the first group that it is shown, or the only one."""

    def method(self: Any, shown: Any, *args: Any) -> Any:
        change(shown if isinstance(shown, SequenceGroup) else shown[0])
        return answer(self, shown, *args)

    return method
