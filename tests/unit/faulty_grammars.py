"""Grammars that are wrong on purpose: the conformance class must catch each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paged_backends.grammar.llguidance_grammar import LlguidanceGrammar
from paged_backends.grammar.settings import LlguidanceSettings
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_core.interfaces.grammar import CompiledGrammar, Matcher
from paged_core.structured_outputs import StructuredOutputs
from unit.faulty_settings import FaultySettings

_END = (1,)
"""Tokens of the kit's vocabulary that end a sequence."""

Masks = NDArray[np.int32]


class _Grammar(LlguidanceGrammar):
    """Grammar without a fault, which the others have."""

    def __init__(self, options: FaultySettings, context: GrammarContext, /) -> None:
        super().__init__(LlguidanceSettings(), context)


class HastyGrammar(_Grammar):
    """May always end."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        problems = super().fill(matchers, masks)
        for token in _END:
            masks[:, 0] |= np.int32(1 << token)
        return problems


class EndlessGrammar(_Grammar):
    """May never end, unless nothing else is left."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        problems = super().fill(matchers, masks)
        for row in masks:
            kept = row.copy()
            row[0] &= ~np.int32(sum(1 << token for token in _END))
            if not row.any():
                row[:] = kept
        return problems


class LastWordGrammar(_Grammar):
    """Leaves the last word of a mask out."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        problems = super().fill(matchers, masks)
        masks[: len(matchers), -1] = 0
        return problems


class ThreadGrammar(_Grammar):
    """Notes in itself what it compiles."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        self.form = form
        return super().compile(self.form)


class JoinedGrammar(_Grammar):
    """Joins choices into a regular expression as they are."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.choice is not None:
            form = StructuredOutputs(regex="|".join(form.choice))
        return super().compile(form)


class ByPlaceGrammar(_Grammar):
    """Keeps what it compiles by where a form is in memory."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        known = self.__dict__.setdefault("known", {})
        if id(form) not in known:
            known[id(form)] = super().compile(form)
        made: CompiledGrammar = known[id(form)]
        return made


class KeepingGrammar(_Grammar):
    """Keeps all regular expressions that it has compiled."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.regex is None:
            return super().compile(form)
        known = self.__dict__.setdefault("known", {})
        if form not in known:
            known[form] = super().compile(form)
        made: CompiledGrammar = known[form]
        return made


class SortingGrammar(_Grammar):
    """Compares each choice with all before it."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        texts = form.choice or ()
        assert not any(text in texts[:place] for place, text in enumerate(texts))
        return super().compile(form)


class RowsGrammar(_Grammar):
    """Keeps the row in which the mask of a beginning was first."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        problems = super().fill(matchers, masks)
        known = self.__dict__.setdefault("known", {})
        for row, matcher in enumerate(matchers):
            if matcher in known:
                masks[row] = known[matcher]
            else:
                known.clear()
                known[matcher] = masks[row]
        return problems


class AddingGrammar(_Grammar):
    """Adds to what is in the rows."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        before = masks.copy()
        problems = super().fill(matchers, masks)
        masks |= before
        return problems


class _RegexGrammar(_Grammar):
    """Reads regular expressions in a way of its own."""

    def read(self, text: str) -> str:
        raise NotImplementedError

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.regex is not None:
            form = replace(form, regex=self.read(form.regex))
        return super().compile(form)


class AnchoredGrammar(_RegexGrammar):
    """Takes the marks of beginning and end for letters."""

    def read(self, text: str) -> str:
        return re.sub(r"(?<!\\)([$])|^\^", r"\\\g<0>", text)


class LowerGrammar(_RegexGrammar):
    """Knows small letters alone."""

    def read(self, text: str) -> str:
        return re.sub(r"(?<!\\)[A-Z]", lambda found: found[0].lower(), text)


class OneBranchGrammar(_RegexGrammar):
    """Cuts alternatives at the first one."""

    def read(self, text: str) -> str:
        return text if "(" in text.partition("|")[0] else text.partition("|")[0] or text


class OpenGrammar(_Grammar):
    """Lets objects have any further properties."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.json:
            form = replace(form, json=form.json.replace('"additionalProperties":false', '"x-a":1'))
        return super().compile(form)


class LongestGrammar(_Grammar):
    """Leaves out choices that another one begins with."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if form.choice is not None:
            texts = [
                each
                for each in form.choice
                if not any(other != each and other.startswith(each) for other in form.choice)
            ]
            form = replace(form, choice=texts)
        return super().compile(form)


class AnyGrammar(_Grammar):
    """Takes an object for any JSON."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        return super().compile(StructuredOutputs(json="{}") if form.json_object else form)


class FirstVocabularyGrammar(_Grammar):
    """Has the vocabulary of the first one that was made."""

    contexts: ClassVar[list[GrammarContext]] = []

    def __init__(self, options: FaultySettings, context: GrammarContext, /) -> None:
        self.contexts.append(context)
        super().__init__(options, self.contexts[0])


class WideGrammar(_Grammar):
    """Allows what is behind the vocabulary."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        problems = super().fill(matchers, masks)
        masks[:, -1] |= np.int32(-1 << 31)
        return problems


class FirstRowGrammar(_Grammar):
    """Fills all rows as the first one."""

    def fill(self, matchers: Sequence[Matcher], masks: Masks, /) -> Mapping[int, str]:
        return super().fill([matchers[0]] * len(matchers), masks)


class SharedGrammar(_Grammar):
    """Has one matcher for all sequences."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        matcher = super().compile(form).matcher()

        class Shared(CompiledGrammar):
            def matcher(self) -> Matcher:
                return matcher

        return Shared()


class _Changed(CompiledGrammar):
    """A grammar whose matchers are changed in place."""

    def __init__(self, own: CompiledGrammar, **methods: object) -> None:
        self._own, self._methods = own, methods

    def matcher(self) -> Matcher:
        made = self._own.matcher()
        made.__class__ = type("Changed", (type(made),), dict(self._methods))
        return made


class CredulousGrammar(_Grammar):
    """Takes tokens that may not come."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        def accept(matcher: Matcher, token_id: int) -> None:
            matcher.own.try_consume_tokens([token_id])  # type: ignore[attr-defined]

        return _Changed(super().compile(form), accept=accept)


class SpecialGrammar(_Grammar):
    """Goes on where a special token comes."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        made: Any = type(super().compile(form).matcher())

        def accept(matcher: Any, token_id: int) -> None:
            if token_id > 2:
                made.accept(matcher, token_id)

        return _Changed(super().compile(form), accept=accept)


class AlwaysWholeGrammar(_Grammar):
    """Says that every beginning is whole."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        return _Changed(super().compile(form), is_at_end=True)


class AiryGrammar(_Grammar):
    """Has spaces where none are wanted."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        return super().compile(replace(form, disable_any_whitespace=False))


class ObligingGrammar(_Grammar):
    """Takes what it cannot enforce for anything at all."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        try:
            return super().compile(form)
        except RequestError:
            return super().compile(StructuredOutputs(regex="[a-z]*"))


def _more(taken: list[int], token_id: int) -> list[int]:
    return [*taken, token_id]


class AlikeGrammar(_Grammar):
    """Knows forms by their texts, of whichever kind."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        if not (known := self.__dict__.setdefault("known", {})) or len(known) > 8:
            known.clear()
        key = str(form.regex or (form.choice or [form])[0])
        return known.setdefault(key, super().compile(form))  # type: ignore[no-any-return]


class RecordingGrammar(_Grammar):
    """Copies all tokens of an output at each."""

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        made: Any = type(super().compile(form).matcher())

        def accept(matcher: Any, token_id: int) -> None:
            matcher.taken = _more(getattr(matcher, "taken", []), token_id)
            made.accept(matcher, token_id)

        return _Changed(super().compile(form), accept=accept)
