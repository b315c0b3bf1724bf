"""First-party grammars pass the conformance class of their slot."""

from __future__ import annotations

from paged_testing import GrammarConformance


class TestLlguidance(GrammarConformance):
    component = "llguidance"


class TestXgrammar(GrammarConformance):
    component = "xgrammar"
    may_be_skipped = True  # where the package is not installed
