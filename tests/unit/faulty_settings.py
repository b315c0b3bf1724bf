"""Options of components that are wrong on purpose."""

from __future__ import annotations

from typing import Literal

from paged_core.plugins.component import ComponentSettings
from paged_policies.allocators.contiguous import ContiguousSettings
from paged_policies.allocators.hash_cached import HashCachedSettings


class FaultySettings(ComponentSettings):
    """Options of a component that is wrong."""

    name: Literal["faulty"] = "faulty"


class FaultyHashCachedSettings(HashCachedSettings):
    """Those of ``hash_cached``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]


class FaultyContiguousSettings(ContiguousSettings):
    """Those of ``contiguous``."""

    name: Literal["faulty"] = "faulty"  # type: ignore[assignment]
