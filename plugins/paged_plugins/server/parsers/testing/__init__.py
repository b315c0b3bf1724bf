"""The conformance kit of the slots ``tool_parser`` and ``reasoning_parser``."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.parsers")

from paged_plugins.server.parsers.testing.parsers import (
    ReasoningParserConformance,
    ToolParserConformance,
)

__all__ = ["ReasoningParserConformance", "ToolParserConformance"]
