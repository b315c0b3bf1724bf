"""Options of the component ``routed`` of the slot ``replicas``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.plugins.chosen_component import ChosenComponent
from paged_core.plugins.component import ComponentSettings


class RoutedSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.replicas.routed_client.RoutedClient`."""

    name: Literal["routed"] = "routed"
    count: PositiveInt = Field(1, le=1024, description="engines, each with the whole model")
    router: ChosenComponent | None = Field(
        None,
        description="which of them serves; null: the setting `router`, or prefix_affinity",
    )
    placement: Literal["process", "ray"] = Field(
        "process", description="where each runs: in a process here, or as an actor of a Ray cluster"
    )
    devices: tuple[str, ...] = Field(
        (), description="of the engines in turn: cuda:0, cuda:1; none: the setting `device`"
    )
