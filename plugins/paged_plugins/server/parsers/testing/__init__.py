"""The conformance kit of the slots ``tool_parser`` and ``reasoning_parser``."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from paged_plugins.server.parsers.testing.reasoning_parser_conformance import (
    ReasoningParserConformance,
)
from paged_plugins.server.parsers.testing.tool_parser_conformance import ToolParserConformance

__all__ = ["ReasoningParserConformance", "ToolParserConformance"]
