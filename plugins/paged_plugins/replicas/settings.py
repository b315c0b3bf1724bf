"""Options of the component ``routed`` of the slot ``replicas``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from paged_core.plugins.chosen_component import ChosenComponent
from paged_core.plugins.component import ComponentSettings


class RoutedSettings(ComponentSettings):
    """Options of :class:`~paged_plugins.replicas.routed_client.RoutedClient`."""

    name: Literal["routed"] = "routed"
    count: PositiveInt = Field(default=1, le=64, description="engines, each with the whole model")
    router: ChosenComponent | None = Field(
        default=None,
        description="which of them serves; null: the setting `router`, or prefix_affinity",
    )
    placement: Literal["process", "ray"] = Field(
        default="process",
        description="where each runs: in a process here, or as an actor of a Ray cluster",
    )
    cpus: float = Field(default=1.0, ge=0, description="of the Ray cluster, for each engine")
    gpus: float = Field(default=0.0, ge=0, description="of the Ray cluster, for each engine")
    devices: tuple[str, ...] = Field(
        default=(), description="of the engines in turn: cuda:0, cuda:1; none: the setting `device`"
    )

    @property
    def num_engines(self) -> int:
        """Engines that are started, by which the core knows this component."""
        return self.count
