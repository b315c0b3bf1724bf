"""Conformance of grammars: outputs that follow their masks have the form that was asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle, product
from typing import Any, ClassVar

import pytest

from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend, Matcher, Vocabulary
from paged_core.structured_outputs import StructuredOutputs
from paged_testing.component import ComponentConformance
from paged_testing.grammar_forms import FORMS, IMPOSSIBLE, MIXED, TEXTS
from paged_testing.use import instructions, threads_in_turns

_SPECIAL = (0, 1, 2)
_PIECES = (
    *('{"', '":', '": ', '","', '"}', "}]", '", "', "[]", "true", "false", "null", "ab", "yes"),
    *("name", "age", "  ", "\n", "\n  ", "12", "0.", "e+", "-1", "\\u", "é", "世", "世界"),
)
_END = frozenset({1, len(_SPECIAL) + 256 + len(_PIECES)})
"""Ends of a sequence, of which one is in the last word of a mask."""
_MOST_TOKENS = 300
_LONG: Sequence[Mapping[str, Any]] = ({"choice": ("zx" * 250, "z")}, {"regex": "(zx)*z?"})
_CHOICES = 64, 1024
_Form = str | Mapping[str, Any]


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

    def compiled(self, backend: GrammarBackend, form: _Form) -> CompiledGrammar:
        """Compile a form, or one of :data:`FORMS`; skip the case if it is refused and no choice."""
        given = FORMS[form][0] if isinstance(form, str) else form
        try:
            return backend.compile(StructuredOutputs(**given))
        except RequestError:
            if "choice" in given:
                raise
            pytest.skip("it refuses this form")

    def served(
        self, backend: GrammarBackend, forms: Iterable[_Form]
    ) -> Iterator[tuple[_Form, CompiledGrammar]]:
        """Yield those of some forms that it does not refuse."""
        for form in forms:
            with suppress(pytest.skip.Exception):
                yield form, self.compiled(backend, form)

    num_uses: ClassVar[int] = 40

    def uses(self) -> Callable[[int], object]:
        """A form is compiled and followed, to its end and to the middle; executors keep those that
        they need."""
        backend = self.make()

        def use(number: int) -> None:
            text = f"yes{number}"
            for _, grammar in self.served(backend, ({"choice": (text,)}, {"regex": text})):
                self.walk(backend, grammar, 0)
                matcher = grammar.matcher()
                matcher.accept(len(_SPECIAL) + ord("y"))
                self.allowed(backend, [matcher])

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

    @pytest.mark.parametrize("name", TEXTS)
    def test_texts_of_a_form_may_be_written_and_no_others(self, name: str) -> None:
        """In some tokens each. A form may be refused."""
        form, good, bad = TEXTS[name]
        backend = self.make()
        grammar = self.compiled(backend, form)
        for text, has_form in (*((t, True) for t in good), *((t, False) for t in bad)):
            can_be = self.can_write(backend, grammar, text.encode(errors="surrogatepass"))
            assert can_be == has_form, (
                f"the masks of {form} {'allow' if can_be else 'never allow'} the text {text!r}, "
                f"which {'has' if has_form else 'has not'} this form"
            )

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
        for kind in ("choice", "regex", "choice"):
            with suppress(RequestError):  # of the other form
                form: dict[str, Any] = {kind: "a.c" if kind == "regex" else ("a.c",)}
                grammar = made[1][0].compile(StructuredOutputs(**form))
                found = self.can_write(made[1][0], grammar, b"abc")
                assert found == (kind == "regex"), f"{form} has the masks of another kind of form"
        for of_one, (backend, words) in product(MIXED, made):
            for _, grammar in self.served(backend, [of_one]):
                for seed in range(3):
                    text = self.walk(backend, grammar, seed, words)
                    assert text is None or FORMS[of_one][1](text), (
                        f"after others were compiled, {text!r} follows the masks, which has not "
                        f"the form {FORMS[of_one][0]}"
                    )

    @pytest.mark.parametrize("form", IMPOSSIBLE, ids=str)
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

    def test_rows_are_the_callers(self) -> None:
        """To be used again, for other matchers and in other orders, and to be written to. Many are
        as each alone."""
        import numpy as np

        backend, matchers = self.make(), list[Matcher]()
        for _, grammar in self.served(backend, ("object", "regex", "choice")):
            for tokens in self.prefixes(backend, grammar, 5):
                matchers.append(grammar.matcher())
                for token in tokens:
                    matchers[-1].accept(token)
        size = -(-len(VOCABULARY.token_bytes) // 32)
        masks = [np.zeros((1, size), np.int32) for _ in matchers]
        for one, matcher in zip(masks, matchers, strict=True):
            assert not backend.fill([matcher], one)
        alone = [one[0].copy() for one in masks]
        buffer, every = np.zeros((len(matchers), size), np.int32), range(len(matchers))
        for order in (every, every[::-1], every[1:2], every[:2], every[:0:-1], every):
            rows = buffer[: len(order)]
            backend.fill([matchers[each] for each in order], rows)
            for row, each in zip(rows, order, strict=True):
                assert (row == alone[each]).all(), (
                    f"of the matchers {[*order]}, filled into rows that were used before, that of "
                    f"{each} has another mask than alone: keep no reference to rows of a caller"
                )
            rows[:] = -1
        for one, before in zip(masks, alone, strict=True):
            assert (one[0] == before).all(), "later calls of fill() changed masks that were filled"
            one[:] = 0
        again = np.zeros_like(buffer)
        backend.fill(matchers, again)
        assert (again == np.stack(alone)).all(), (
            "after the caller wrote to rows that were filled, masks are others: keep a copy of "
            "what is known, not the row of a caller"
        )

    def test_accepts_nothing_that_cannot_follow(self) -> None:
        """At the beginning and later: other letters, and special tokens that end no sequence."""
        grammar = self.compiled(self.make(), "choice")
        for before, token in product(
            (b"", b"ye"), ({*_SPECIAL} - _END) | {len(_SPECIAL) + ord("x")}
        ):
            matcher = grammar.matcher()
            for letter in before:
                matcher.accept(len(_SPECIAL) + letter)
            with pytest.raises(ValueError, match=r"."):
                matcher.accept(token)

    @pytest.mark.parametrize("form", _LONG, ids=str)
    def test_a_token_takes_as_long_after_many_others(self, form: Mapping[str, Any]) -> None:
        backend, letters = self.make(), cycle(b"zx")
        matcher = self.compiled(backend, form).matcher()

        def accept(times: int) -> None:
            for _ in range(times):
                matcher.accept(len(_SPECIAL) + next(letters))

        def costs() -> tuple[int, int]:
            fill = partial(self.allowed, backend, [matcher])
            calls = partial(accept, 8), lambda: [fill() for _ in range(8)]
            return instructions(calls[0], self.package), instructions(calls[1], self.package)

        accept(4)
        first = costs()
        accept(464)
        for name, few, many in zip(("accept", "fill"), first, costs(), strict=True):
            assert many <= 2 * few + 100, (
                f"{name}() takes {few} instructions for eight tokens at the beginning of an "
                f"output, {many} after 476 others"
            )

    def test_compiling_takes_in_proportion_to_the_choices(self) -> None:
        few, many = (
            instructions(partial(self.make().compile, StructuredOutputs(choice=each)), self.package)
            for each in (tuple(f"{n} of {most}" for n in range(most)) for most in _CHOICES)
        )
        assert many <= 2 * few * _CHOICES[1] // _CHOICES[0], (
            f"{_CHOICES[0]} choices take {few} instructions to compile, {_CHOICES[1]} take {many}"
        )

    def test_any_thread_may_compile(self) -> None:
        """While others compile other forms, and one fills masks."""
        backend = self.make()
        names = [str(name) for name, _ in self.served(backend, FORMS)]
        forms = [FORMS[name] for name in names]
        for number in range(32):
            texts = [f"{number} of many {each}" for each in range(40)]
            forms.append(({"choice": texts}, texts.__contains__))
            if "regex" in names:
                text = f"{number} of one " * 10
                forms.append(({"regex": text}, text.__eq__))

        def text_of(form: Mapping[str, Any]) -> str | None:
            try:
                return self.walk(backend, backend.compile(StructuredOutputs(**form)), 0)
            except RequestError:
                if "regex" not in form:
                    raise
                return None  # it may refuse a long one

        try:
            with threads_in_turns(self.package), ThreadPoolExecutor(8) as pool:
                found = [*pool.map(text_of, (form for form, _ in forms))]
        except Exception as error:
            error.add_note("forms were compiled in several threads at once")
            raise
        wrong = [
            f"{text!r} of {str(form)[:80]}"
            for text, (form, check) in zip(found, forms, strict=True)
            if text is not None and not check(text)
        ]
        assert not wrong, f"compiled in several threads at once, forms give {', '.join(wrong)}"

    # ------------------------------------------------------------------ what is checked

    def check_mask(
        self, backend: GrammarBackend, grammar: CompiledGrammar, tokens: Sequence[int]
    ) -> None:
        """Check the mask after some tokens, bit by bit."""
        matcher = grammar.matcher()
        for each in tokens:
            matcher.accept(each)
        (allowed,) = self.allowed(backend, [matcher])
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
        if any(row & ({*_SPECIAL} - _END) for row in rows):
            cleared = np.zeros_like(masks)
            backend.fill(matchers, cleared)
            assert (masks == cleared).all(), (
                "masks depend on what was in their rows before: write whole rows, or clear them"
            )
            raise AssertionError("a special token is no part of a text")
        for row, matcher in zip(rows, matchers, strict=True):
            ends, wanted = row & _END, _END if matcher.is_at_end else set()
            assert ends == wanted, (
                f"where is_at_end is {matcher.is_at_end} the mask has {[*ends]} of the tokens that "
                f"end a sequence, {[*_END]}: all of them, or none"
            )
        return rows

    def can_write(
        self, backend: GrammarBackend, grammar: CompiledGrammar, text: bytes, *before: int
    ) -> bool:
        """Return whether the masks allow a text in some tokens, and its end, after some tokens."""
        matcher = grammar.matcher()
        for token in before:
            matcher.accept(token)
        (allowed,) = self.allowed(backend, [matcher])
        if not text:
            return bool(allowed & _END)
        return any(
            self.can_write(backend, grammar, text.removeprefix(part), *before, token)
            for token in allowed
            if (part := VOCABULARY.token_bytes[token]) and text.startswith(part)
        )

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
            try:
                matcher.accept(token)
            except ValueError as error:
                raise AssertionError(
                    f"after the tokens {tokens} a mask allows {token}, which accept() refuses "
                    f"({error}): is the mask that of another form or matcher, such as one found "
                    "by the id() of what is gone?"
                ) from error
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
