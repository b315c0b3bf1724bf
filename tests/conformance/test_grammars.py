"""First-party grammars pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from paged_core.errors import RequestError
from paged_core.structured_outputs import StructuredOutputs
from paged_testing import GrammarConformance

pytestmark = pytest.mark.heavy


class TestLlguidance(GrammarConformance):
    component = "llguidance"

    @pytest.mark.parametrize(
        "form", [{"json": {"$ref": "#"}}, {"grammar": 'start: start "a"'}], ids=str
    )
    def test_refuses_what_no_text_has(self, form: Mapping[str, Any]) -> None:
        with pytest.raises(RequestError, match="cannot be compiled"):
            self.make().compile(StructuredOutputs(**form))


class TestXgrammar(GrammarConformance):
    component = "xgrammar"
    may_be_skipped = True  # where the package is not installed
