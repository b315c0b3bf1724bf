"""No prediction: policies go by ``max_tokens``."""

from __future__ import annotations

from typing import Literal

from paged_core.engine.contexts import SlotContext
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request


class NoneSettings(ComponentSettings):
    """Options of :class:`NoPredictor`: there are none."""

    name: Literal["none"] = "none"


class NoPredictor(LengthPredictor):
    """Knows nothing."""

    def __init__(self, options: NoneSettings, context: SlotContext, /) -> None:
        pass

    def expect(self, request: Request, /) -> ExpectedLength | None:
        return None
