"""Conformance of grammars: outputs that follow their masks have the form that was asked for."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Matcher, Vocabulary
from paged_core.structured_outputs import StructuredOutputs
from paged_testing.component import ComponentConformance
from paged_testing.use import threads_in_turns

_SPECIAL = (0, 1, 2)
_PIECES = (
    *('{"', '":', '": ', '","', '"}', "}]", '", "', "[]", "true", "false", "null", "ab", "yes"),
    *("name", "age", "  ", "\n", "\n  ", "12", "0.", "e+", "-1", "\\u", "é", "世", "世界"),
)
_END = frozenset({1, len(_SPECIAL) + 256 + len(_PIECES)})
"""Ends of a sequence, of which one is in the last word of a mask."""
_MOST_TOKENS = 300
_STRING = re.compile(r'"(\\.|[^"\\])*"')

Check = Callable[[str], bool]


def _json(check: Callable[[Any], bool]) -> Check:
    def checked(text: str) -> bool:
        with suppress(ValueError):
            return check(json.loads(text))
        return False

    return checked


_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["ab", "yes"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _is_person(value: Any) -> bool:
    return (
        {"name", "age"} <= set(value) <= {"name", "age", "tags"}
        and isinstance(value["name"], str)
        and type(value["age"]) is int
        and 0 <= value["age"] <= 130
        and all(tag in ("ab", "yes") for tag in value.get("tags", []))
        and len(value.get("tags", [])) <= 2
    )


_CHOICES = ["yes", "ye", "no: \u4e16\u754c", 'a "quote"', "(1.5)*"]
FORMS: Mapping[str, tuple[Mapping[str, Any], Check]] = {
    "choice": ({"choice": _CHOICES}, _CHOICES.__contains__),
    "regex": ({"regex": "(ab|12)+-?[0-9]{2}"}, lambda t: bool(re.fullmatch(r"(ab|12)+-?\d\d", t))),
    "object": ({"json": _PERSON}, _json(_is_person)),
    "compact": (
        {"json": _PERSON, "disable_any_whitespace": True},
        lambda t: _is_person(json.loads(t)) and not re.search(r"\s", _STRING.sub("", t)),
    ),
    "anything": ({"json_object": True}, _json(lambda v: isinstance(v, dict))),
    "grammar": (
        {"grammar": 'root ::= ("ab" | "no") [0-9] more\nmore ::= "" | "," root'},
        lambda t: bool(re.fullmatch(r"(ab|no)\d(,(ab|no)\d)*", t)),
    ),
    "short": ({"json": {"type": "string", "maxLength": 4}}, _json(lambda v: len(v) <= 4)),
    "enumeration": ({"json": {"enum": [1, "ab", None]}}, _json(lambda v: v in (1, "ab", None))),
    "integers": (
        {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}},
        _json(lambda v: 2 <= len(v) <= 3 and all(type(each) is int for each in v)),
    ),
    "either": (
        {"json": {"anyOf": [{"type": "boolean"}, {"const": "ab"}]}},
        _json(lambda v: v in (True, False, "ab")),
    ),
    "nested": (
        {
            "json": {
                "$defs": {"leaf": {"enum": ["ab"]}},
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/leaf"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        },
        _json(lambda v: v == {"a": "ab"}),
    ),
    "no duplicates": (
        {
            "json": {
                "type": "array",
                "items": {"enum": [1, 2]},
                "minItems": 2,
                "maxItems": 2,
                "uniqueItems": True,
            }
        },
        _json(lambda v: sorted(v) == [1, 2]),
    ),
    "not": ({"json": {"type": "boolean", "not": {"const": True}}}, _json(lambda v: v is False)),
    "multiple": (
        {"json": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 50}},
        _json(lambda v: v % 7 == 0),
    ),
    "pattern": (
        {"json": {"type": "string", "pattern": "^a[bc]{2}$"}},
        _json(lambda v: bool(re.fullmatch("a[bc]{2}", v))),
    ),
    "one of": (
        {"json": {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}},
        _json(lambda v: v in (1, 3)),
    ),
}
"""Forms, and what an output of each must be. A component may refuse one that it cannot enforce."""
_LEAST = "choice"
_MIXED = (_LEAST, "regex", "object", "enumeration", "integers", "either", "nested", "compact")
_IMPOSSIBLE: Sequence[Mapping[str, Any]] = (
    {"regex": "(ab"},
    {"json": {"type": "no such type"}},
    {"json": {"$ref": "#/$defs/nowhere"}},
    {"json": {"type": "object", "no such keyword that asserts": 1, "not": {}}},
    {"grammar": "no grammar at all ((("},
)


class GrammarConformance(ComponentConformance):
    """Subclass it for a grammar::

    class TestMyGrammar(GrammarConformance):
        component = "my_grammar"
    """

    slot: ClassVar[str] = "grammar"

    def make(self) -> GrammarBackend:
        """A fresh component, for the vocabulary of the kit."""
        made = self.build(GrammarContext(vocabulary=VOCABULARY))
        assert isinstance(made, GrammarBackend)
        return made

    def compiled(self, backend: GrammarBackend, name: str) -> CompiledGrammar:
        """Compile a form of :data:`FORMS`; skip the case if it is refused and no choice."""
        try:
            return backend.compile(StructuredOutputs(**FORMS[name][0]))
        except RequestError:
            if name == _LEAST:
                raise
            pytest.skip("it refuses this form")

    def served(
        self, backend: GrammarBackend, names: Iterable[str]
    ) -> Iterator[tuple[str, CompiledGrammar]]:
        """Yield those of some forms that it does not refuse."""
        for name in names:
            with suppress(pytest.skip.Exception):
                yield name, self.compiled(backend, name)

    num_uses: ClassVar[int] = 40

    def uses(self) -> Callable[[int], object]:
        """A form is compiled and followed; executors keep those that they need."""
        backend = self.make()

        def use(number: int) -> None:
            self.walk(backend, backend.compile(StructuredOutputs(choice=(f"yes{number}",))), 0)

        return use

    # ------------------------------------------------------------------ the form

    @pytest.mark.parametrize("name", FORMS)
    def test_what_follows_the_masks_has_the_form(self, name: str) -> None:
        backend = self.make()
        grammar = self.compiled(backend, name)
        ended = [text for seed in range(20) if (text := self.walk(backend, grammar, seed))]
        assert ended, "no output came to an end"
        for text in ended:
            assert FORMS[name][1](text), f"{text!r} has not the form {FORMS[name][0]}"

    def test_forms_of_one_component_do_not_mix(self) -> None:
        """Each is gone when the next one comes; another component has another vocabulary."""
        ids = VOCABULARY.token_bytes
        turned = [*ids[:3], *ids[-2:2:-1], None]
        vocabulary = replace(
            VOCABULARY,
            token_bytes=turned,
            encode=lambda text: [turned.index(bytes([byte])) for byte in text.encode()],
        )
        made = (
            (self.build(GrammarContext(vocabulary=vocabulary)), vocabulary),
            (self.make(), VOCABULARY),
        )
        for of_one, (backend, words) in product(_MIXED, made):
            for name, grammar in self.served(backend, [of_one]):
                for seed in range(3):
                    text = self.walk(backend, grammar, seed, words)
                    assert text is None or FORMS[name][1](text), (
                        f"after others were compiled, {text!r} follows the masks, which has not "
                        f"the form {FORMS[name][0]}"
                    )

    def test_all_of_a_choice_can_be_chosen(self) -> None:
        backend = self.make()
        grammar = self.compiled(backend, "choice")
        found = {self.walk(backend, grammar, seed) for seed in range(60)}
        missing = {*_CHOICES} - found
        assert not missing, f"of the choices {_CHOICES} the masks never allow {missing}"

    @pytest.mark.parametrize("form", _IMPOSSIBLE, ids=str)
    def test_refuses_what_it_cannot_enforce(self, form: Mapping[str, Any]) -> None:
        with pytest.raises(RequestError) as refused:
            self.make().compile(StructuredOutputs(**form))
        assert "\n" not in str(refused.value), "the reason is to be one line"

    # ------------------------------------------------------------------ the masks

    def test_accepts_what_a_mask_allows(self) -> None:
        backend = self.make()
        for _, grammar in self.served(backend, ("regex", "object", "choice")):
            for tokens in self.prefixes(backend, grammar, 3):
                self.check_mask(backend, grammar, tokens)

    def test_a_sequence_may_end_where_it_is_whole(self) -> None:
        backend = self.make()
        grammar = self.compiled(backend, "choice")
        matcher = grammar.matcher()
        assert not matcher.is_at_end
        for letter in b"ye":
            matcher.accept(len(_SPECIAL) + letter)
        assert matcher.is_at_end
        assert self.allowed(backend, [matcher])[0] > _END
        matcher.accept(len(_SPECIAL) + ord("s"))
        assert matcher.is_at_end
        assert self.allowed(backend, [matcher])[0] == _END, "the end is all that may follow"

    def test_many_rows_in_one_call_are_as_each_alone(self) -> None:
        backend = self.make()
        matchers = []
        for _, grammar in self.served(backend, ("object", "regex", "choice")):
            for tokens in self.prefixes(backend, grammar, 5):
                matchers.append(grammar.matcher())
                for token in tokens:
                    matchers[-1].accept(token)
        together = self.allowed(backend, matchers)
        assert together == [self.allowed(backend, [each])[0] for each in matchers]

    def test_accepts_nothing_that_cannot_follow(self) -> None:
        matcher = self.compiled(self.make(), "choice").matcher()
        with pytest.raises(ValueError, match=r"."):
            matcher.accept(len(_SPECIAL) + ord("x"))

    def test_matchers_of_one_grammar_share_nothing(self) -> None:
        backend = self.make()
        grammar = self.compiled(backend, "choice")
        one, other = grammar.matcher(), grammar.matcher()
        before = self.allowed(backend, [other])
        one.accept(min(self.allowed(backend, [one])[0]))
        assert self.allowed(backend, [other]) == before
        assert self.allowed(backend, [grammar.matcher()]) == before

    def test_any_thread_may_compile(self) -> None:
        """While others compile other forms, and one fills masks."""
        backend = self.make()
        forms = [StructuredOutputs(choice=(f"{number} of many",)) for number in range(8)]
        with threads_in_turns(), ThreadPoolExecutor(len(forms)) as pool:
            compiled = [*pool.map(backend.compile, forms * 4)]
            found = [*pool.map(lambda each: self.walk(backend, each, 0), compiled)]
        wanted = [f"{number} of many" for number in range(8)] * 4
        assert found == wanted, f"compiled in several threads at once, they give {found}"

    # ------------------------------------------------------------------ what is checked

    def check_mask(
        self, backend: GrammarBackend, grammar: CompiledGrammar, tokens: Sequence[int]
    ) -> None:
        """Check the mask after some tokens, bit by bit."""
        matcher = grammar.matcher()
        for each in tokens:
            matcher.accept(each)
        (allowed,) = self.allowed(backend, [matcher])
        ends, wanted = allowed & _END, _END if matcher.is_at_end else set()
        assert ends == wanted, (
            f"where is_at_end is {matcher.is_at_end} the mask has {[*ends]} of the tokens that end "
            f"a sequence, {[*_END]}: all of them, or none"
        )
        for token in allowed - _END:
            matcher = grammar.matcher()
            for each in (*tokens, token):
                matcher.accept(each)  # others it may accept, too: of two ways to write a text

    def allowed(self, backend: GrammarBackend, matchers: Sequence[Matcher]) -> list[set[int]]:
        """Return the tokens of the masks."""
        import numpy as np  # the kit is listed without it

        masks = np.full((len(matchers), -(-len(VOCABULARY.token_bytes) // 32)), 5, np.int32)
        problems = backend.fill(matchers, masks)
        assert not problems, problems
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
        assert not bits[:, len(VOCABULARY.token_bytes) :].any(), "it allows tokens that are not"
        rows = [set(np.flatnonzero(row[: len(VOCABULARY.token_bytes)]).tolist()) for row in bits]
        for row in rows:
            assert not row & ({*_SPECIAL} - _END), "a special token is no part of a text"
        return rows

    def walk(
        self,
        backend: GrammarBackend,
        grammar: CompiledGrammar,
        seed: int,
        vocabulary: Vocabulary | None = None,
    ) -> str | None:
        """Return an output by chance; ``None``: it did not end in time."""
        *_, tokens = self.prefixes(backend, grammar, seed)
        if len(tokens) >= _MOST_TOKENS:
            return None
        words = (vocabulary or VOCABULARY).token_bytes
        return b"".join(words[token] or b"" for token in tokens).decode("utf-8", "replace")

    def prefixes(
        self, backend: GrammarBackend, grammar: CompiledGrammar, seed: int
    ) -> Iterator[list[int]]:
        """Yield an output by chance as it grows, to its end or to a bound."""
        rng, matcher, tokens = random.Random(seed), grammar.matcher(), list[int]()
        while len(tokens) <= _MOST_TOKENS:
            yield list(tokens)
            (allowed,) = self.allowed(backend, [matcher])
            assert allowed, f"after {tokens} no token may come"
            token = rng.choice(sorted(allowed))
            if token in _END or (allowed & _END and rng.random() < 0.2):
                return
            matcher.accept(token)
            tokens.append(token)


def _encode(text: str) -> list[int]:
    return [len(_SPECIAL) + byte for byte in text.encode()]


VOCABULARY = Vocabulary(
    token_bytes=[
        *(None for _ in _SPECIAL),
        *(bytes([byte]) for byte in range(256)),
        *(piece.encode() for piece in _PIECES),
        None,
    ],
    eos_token_ids=_END,
    encode=_encode,
)
"""Special tokens, all bytes, and pieces of several; an id that ends is behind all of them."""
