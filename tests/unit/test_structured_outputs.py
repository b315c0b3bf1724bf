"""Structured outputs as plain data, and grammars compiled beside the steps."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Iterator
from ctypes import CDLL
from threading import Event
from weakref import ref

import pytest

from paged_backends.grammar.compiler import GrammarCompiler
from paged_backends.grammar.settings import LlguidanceSettings
from paged_core import SamplingParams, StructuredOutputs
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError, SettingsError
from paged_core.interfaces.grammar import CompiledGrammar, GrammarBackend
from paged_testing.grammar import VOCABULARY

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


def test_equal_forms_are_one_key_and_can_be_sent() -> None:
    forms = [
        StructuredOutputs(json=SCHEMA),  # type: ignore[arg-type]
        StructuredOutputs(json='{"type": "object",\n "properties": {"b": {}, "a": {}}}'),
    ]
    assert len(set(forms)) == 1
    assert forms[0].json == '{"type":"object","properties":{"b":{},"a":{}}}', "in their order"
    assert pickle.loads(pickle.dumps(forms[0])) == forms[0]
    assert StructuredOutputs(choice=["a", "b", "a"]).choice == ("a", "b")  # type: ignore[arg-type]


def test_a_mapping_of_its_fields_is_accepted() -> None:
    sampling = SamplingParams(structured_outputs={"regex": "a+"})  # type: ignore[arg-type]
    assert sampling.structured_outputs == StructuredOutputs(regex="a+")
    assert sampling.clone(n=2).structured_outputs == StructuredOutputs(regex="a+")


deep: list[object] = []
for _ in range(100_000):
    deep = [deep]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "takes one of json, regex, .* and has none"),
        ({"json": "{}", "regex": "a"}, "has json and regex"),
        ({"json": "{"}, "json is no JSON schema"),
        ({"json": "3"}, "json must be a JSON schema"),
        ({"json": {"a": float("nan")}}, "json is no JSON schema"),
        ({"json": {"a": object()}}, "json is no JSON schema"),
        ({"json": {"a": deep}}, "json is no JSON schema"),
        ({"json": {"a": "x" * (1 << 21)}}, "json has .* characters"),
        ({"regex": ""}, "regex must not be empty"),
        ({"regex": 3}, "regex must be text"),
        ({"regex": "\ud800"}, "half of a surrogate pair"),
        ({"choice": "yes"}, "choice must be a list of texts"),
        ({"choice": []}, "choice must be a list of texts"),
        ({"choice": ["a", 3]}, "choice must be a string or a list of strings"),
        ({"json_object": "yes"}, "json_object must be True or False"),
        ({"guided_json": "{}"}, "has no field 'guided_json'; it has"),
        (3, "must be StructuredOutputs"),
    ],
)
def test_says_what_is_wrong_with_a_form(given: object, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        SamplingParams(structured_outputs=given)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("other", [{"beam_width": 2}, {"ignore_eos": True}])
def test_contradictions_are_named(other: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), **other)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- compiling


class Large:
    """Stands for a compiled form of 16 MiB."""

    def __init__(self) -> None:
        self.content = b"x" * (16 << 20)


class Backend(GrammarBackend):
    """Counts what it compiles; a form says what happens."""

    def __init__(self) -> None:
        self.compiled: list[str | None] = []
        self.go_on = Event()

    def compile(self, form: StructuredOutputs, /) -> CompiledGrammar:
        self.compiled.append(form.regex)
        if form.regex == "raise":
            raise ValueError("a fault of the component")
        if form.regex is not None and form.regex.startswith("large"):
            return Large()  # type: ignore[return-value]
        if form.regex == "refuse":
            raise RequestError("no such form")
        if form.regex is not None and form.regex.startswith("hang"):
            self.go_on.wait(30)
        return object()  # type: ignore[return-value]

    def fill(self, matchers: object, masks: object, /) -> dict[int, str]:
        raise NotImplementedError


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.go_on.set()


def compiler(backend: Backend, timeout: float = 30.0) -> GrammarCompiler:
    return GrammarCompiler("mine", lambda: (VOCABULARY, backend), timeout)


def form(regex: str, after: str | None = None) -> StructuredOutputs:
    return StructuredOutputs(regex=regex, after=after)


def test_a_form_is_compiled_once_wherever_it_begins(backend: Backend) -> None:
    forms = compiler(backend)
    futures = [forms.compile(form("a")), forms.compile(form("a", "</think>"))]
    assert [future.result(30) for future in futures] == [None, None]
    assert forms.get(form("a")) is forms.get(form("a"))
    assert backend.compiled == ["a"]


@pytest.mark.parametrize(
    ("regex", "said"),
    [("refuse", "^no such form$"), ("raise", "grammar 'mine' raised ValueError: a fault of the")],
)
def test_the_future_says_why_a_form_is_refused(backend: Backend, regex: str, said: str) -> None:
    forms = compiler(backend)
    for _ in range(2):
        with pytest.raises(RequestError, match=said):
            forms.compile(form(regex)).result(30)
    assert backend.compiled == [regex], "the refusal is kept"


def test_a_form_that_takes_too_long_is_refused_and_others_are_served(backend: Backend) -> None:
    forms = compiler(backend, timeout=0.2)
    for number in range(8):
        assert forms.compile(form(f"a{number}")).result(30) is None
        with pytest.raises(RequestError, match=r"grammar_timeout=0\.2 s; simplify it"):
            forms.compile(form(f"hang {number}")).result(30)
    with pytest.raises(RequestError, match="8 others are still being compiled"):
        forms.compile(form("a")).result(30)
    backend.go_on.set()
    deadline = time.monotonic() + 30
    while True:  # what is over its time ends at last
        try:
            forms.compile(form("a")).result(30)
            break
        except RequestError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_future_cannot_be_cancelled_by_one_of_those_who_wait(backend: Backend) -> None:
    forms = compiler(backend)
    future = forms.compile(form("hang"))
    assert not future.cancel()
    backend.go_on.set()
    assert future.result(30) is None


def test_what_is_kept_is_bounded_by_memory(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where forms are compiled into what the earlier ones have left."""
    monkeypatch.setattr("paged_backends.grammar.compiler._MOST_BYTES", 80 << 20)
    forms = compiler(backend)
    CDLL(None).malloc_trim(0)  # what is allocated shows as growth of the process
    made = [ref(forms.get(form(f"large{number}"))) for number in range(40)]
    gc.collect()
    kept = [each() is not None for each in made]
    assert kept[-1]
    assert sum(kept) <= 5
    assert kept == sorted(kept), "those that were asked for last"


def chain(kind: str, length: int) -> StructuredOutputs:
    """Return a form whose parts each refer to the next."""
    if kind == "rules":
        lines = [f'r{number}: "w" r{number + 1} | "x"' for number in range(length)]
        return StructuredOutputs(grammar="\n".join(("start: r0", *lines, f'r{length}: "y"')))
    parts = {f"d{n}": {"items": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(length)}
    schema = {"$defs": {**parts, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}
    return StructuredOutputs(json=schema)


@pytest.mark.parametrize("kind", ["rules", "references"])
def test_forms_of_any_depth_end_no_process(kind: str) -> None:
    """A recursion without stack would end this one, too."""
    made = pytest.importorskip("paged_backends.grammar.llguidance_grammar")
    context = GrammarContext(vocabulary=VOCABULARY)
    backend = made.LlguidanceGrammar(LlguidanceSettings(), context)
    forms = GrammarCompiler("llguidance", lambda: (VOCABULARY, backend), 60.0)
    forms.get(chain(kind, 5000)).matcher()


def test_a_grammar_that_cannot_be_used_here_refuses_each_request(backend: Backend) -> None:
    def make() -> tuple[object, Backend]:
        raise SettingsError("the package is not installed")

    forms = GrammarCompiler("mine", make, 30)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cannot be served: the package is not installed"):
        forms.compile(form("a")).result(30)
