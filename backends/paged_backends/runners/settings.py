"""Options of the runners; light, because every listing imports them."""

from __future__ import annotations

from typing import Literal

from paged_core.component import ComponentSettings


class TransformersSettings(ComponentSettings):
    """Any decoder-only model of the transformers library, through its attention interface."""

    name: Literal["transformers"] = "transformers"
