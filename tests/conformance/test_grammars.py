"""First-party grammars pass the conformance class of their slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from paged_backends.grammar.llguidance_grammar import LlguidanceGrammar
from paged_backends.grammar.settings import LlguidanceSettings
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import CompiledGrammar
from paged_core.plugins.component import Component, ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.structured_outputs import StructuredOutputs
from paged_testing import GrammarConformance, registry_with
from paged_testing.grammar import VOCABULARY

pytestmark = pytest.mark.heavy


UNSUPPORTED: Sequence[Any] = (
    {"type": "string", "not": {"const": "a"}},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"const": 1}},
    {"if": {"const": 1}, "then": {"type": "integer"}},
    {"dependentRequired": {"a": ["b"]}},
    {"propertyNames": {"pattern": "^a"}},
    {"unevaluatedProperties": False},
    {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}, {"type": "integer"}]},
    {"type": "string", "format": "no such format"},
    {"type": "string", "pattern": "^(?=a)b"},
    {"$ref": "http://127.0.0.1:1/schema.json"},
    {"$ref": "#/$defs/nowhere"},
    {"type": "text"},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    False,
    {"type": "string", "not": {}, "x-guidance": {"lenient": True}},
    {"oneOf": [{}, {}], "x-guidance": {"coerce_one_of": True}},
    {"$ref": "#"},
)
"""Schemas of which a part cannot be enforced, or that no text has."""


class TestLlguidance(GrammarConformance):
    component = "llguidance"

    @pytest.mark.parametrize(
        "form",
        [
            *({"json": each} for each in UNSUPPORTED),
            {"grammar": 'start: start "a"'},
            {"grammar": 'start: %json {"type": "string", "x-guidance": {"lenient": true}}'},
        ],
        ids=str,
    )
    def test_refuses_what_it_would_not_enforce(self, form: Mapping[str, Any]) -> None:
        with pytest.raises(RequestError, match="cannot be compiled"):
            self.make().compile(StructuredOutputs(**form))

    def test_of_special_tokens_only_those_are_allowed_that_it_names(self) -> None:
        """Beside text, too: where calls or a form may come."""
        special = sorted(n for n, text in enumerate(VOCABULARY.token_bytes) if text is None)
        backend = self.make()
        grammar = f'start: call | "{{"\ncall: <[{special[-1]}]> "{{"'
        compiled = backend.compile(StructuredOutputs(grammar=grammar))
        masks = np.zeros((1, -(-len(VOCABULARY.token_bytes) // 32)), np.int32)
        assert not backend.fill([compiled.matcher()], masks)
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[0]
        allowed = set(np.flatnonzero(bits[: len(VOCABULARY.token_bytes)]).tolist())
        assert allowed & set(special) == {special[-1]}
        assert len(allowed) > 1


class TestXgrammar(GrammarConformance):
    component = "xgrammar"
    may_be_skipped = True  # where the package is not installed


class ChoicesSettings(ComponentSettings):
    """Options of :class:`Choices`."""

    name: Literal["choices"] = "choices"


class Choices(LlguidanceGrammar):
    """Enforces choices alone."""

    def __init__(self, options: ChoicesSettings, context: GrammarContext, /) -> None:
        super().__init__(LlguidanceSettings(), context)

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.choice is None:
            raise RequestError("it enforces choices alone")
        return super().compile(form)


class TestChoices(GrammarConformance):
    component = "choices"

    def make_registry(self) -> Registry:
        place = f"{__name__}:Choices"
        return registry_with(Component("grammar", ChoicesSettings, place, summary="choices"))
