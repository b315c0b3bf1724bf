"""Options of the communicators; imports nothing heavy, because every listing imports it."""

from __future__ import annotations

from typing import Literal

from paged_core.plugins.component import ComponentSettings


class GlooSettings(ComponentSettings):
    """PyTorch's gloo: over TCP, on one machine or several."""

    name: Literal["gloo"] = "gloo"
