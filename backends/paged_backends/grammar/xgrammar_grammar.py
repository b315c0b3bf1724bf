"""Component ``xgrammar``: the package of that name.

It ignores the parts of a JSON schema that it does not know, so those are refused before it sees
them: only keywords that it enforces, and those that say nothing about an instance, are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xgrammar
from numpy.typing import NDArray

from paged_backends.grammar.settings import XgrammarSettings
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Matcher
from paged_core.structured_outputs import StructuredOutputs

_ENFORCED = {
    *("type", "enum", "const", "anyOf", "$ref", "$defs", "definitions"),
    *("properties", "required", "additionalProperties"),
    *("items", "prefixItems", "minItems", "maxItems"),
}
"""Not the length of a string: within one that is bounded, 0.2 allows what JSON must escape."""
_SAY_NOTHING = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment"),
}
_INTEGERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
"""Enforced of integers alone."""
_MOST_WHITESPACE = 1


class XgrammarGrammar(GrammarBackend):
    """Compiles forms with xgrammar."""

    def __init__(self, options: XgrammarSettings, context: GrammarContext, /) -> None:
        vocabulary = context.vocabulary
        self._compiler = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(
                [text or b"" for text in vocabulary.token_bytes],
                xgrammar.VocabType.RAW,
                vocab_size=len(vocabulary.token_bytes),
                stop_token_ids=sorted(vocabulary.eos_token_ids),
            ),
            max_threads=options.num_threads,
            cache_enabled=False,
        )
        self._batch = xgrammar.BatchGrammarMatcher(options.num_threads)

    def compile(self, form: StructuredOutputs, /) -> _Compiled:
        try:
            return _Compiled(self._compiled(form))
        except RequestError:
            raise
        except Exception as error:  # of several kinds, from C++
            reason = " ".join(str(error).split())
            raise _refused(reason) from error

    def fill(self, matchers: Sequence[Matcher], masks: NDArray[np.int32], /) -> Mapping[int, str]:
        own = [matcher.own for matcher in matchers if isinstance(matcher, _Matcher)]
        self._batch.batch_fill_next_token_bitmask(own, masks)
        return {}

    def _compiled(self, form: StructuredOutputs) -> Any:
        compiler = self._compiler
        if form.schema is not None:
            for problem in _problems(json.loads(form.schema)):
                raise _refused(problem)
            return compiler.compile_json_schema(
                form.schema,
                any_whitespace=not form.disable_any_whitespace,
                max_whitespace_cnt=None if form.disable_any_whitespace else _MOST_WHITESPACE,
                separators=(",", ":") if form.disable_any_whitespace else None,
                strict_mode=False,
            )
        if form.regex is not None:
            return compiler.compile_regex(form.regex)
        if form.choice is not None:
            written = [json.dumps(each, ensure_ascii=False) for each in form.choice]
            return compiler.compile_grammar(f"root ::= {' | '.join(written)}")
        return compiler.compile_grammar(form.grammar or "")


class _Compiled(CompiledGrammar):
    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def matcher(self) -> _Matcher:
        return _Matcher(xgrammar.GrammarMatcher(self._compiled))


class _Matcher(Matcher):
    def __init__(self, own: Any) -> None:
        self.own = own

    def accept(self, token_id: int, /) -> None:
        if not self.own.accept_token(token_id):
            raise ValueError(f"token {token_id} may not come here")

    @property
    def is_at_end(self) -> bool:
        return bool(self.own.is_completed())


def _problems(schema: Any) -> Iterator[str]:
    """Yield what of a schema would be ignored."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield "a schema must be an object, true or false"
        return
    enforced = _ENFORCED | _INTEGERS if schema.get("type") == "integer" else _ENFORCED
    for key, value in schema.items():
        if key in _SAY_NOTHING:
            continue
        if key not in enforced:
            yield f"it does not enforce {key!r}"
        elif key in {"properties", "$defs", "definitions"}:
            for part in value.values() if isinstance(value, dict) else ():
                yield from _problems(part)
        elif key in {"anyOf", "prefixItems"}:
            for part in value if isinstance(value, list) else ():
                yield from _problems(part)
        elif key in {"items", "additionalProperties"}:
            yield from _problems(value)


def _refused(reason: str) -> RequestError:
    return RequestError(
        f"structured_outputs cannot be compiled by grammar 'xgrammar': {reason[:400]}"
    )
