"""Schemas as clients make them, and the numbers, digits and notations of forms."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from paged_backends.grammar.settings import LlguidanceSettings
from paged_core import StructuredOutputs
from paged_core.engine.contexts import GrammarContext
from paged_core.errors import RequestError
from paged_plugins.server.openai.schemas import as_grammars_take_it
from paged_testing.grammar import VOCABULARY

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
A, B = {"type": "string"}, {"type": "integer"}
X = A | {"format": "x"}


def tagged(tag: str | int, *required: str) -> dict[str, Any]:
    """Return an object that a tag tells from others, as pydantic writes it."""
    named = {"k": {"const": tag, "default": tag}, str(tag): B}
    return {"type": "object", "properties": named, "required": [str(tag), *required]}


DEFS = {"$defs": {"a": tagged("a"), "b": tagged("b")}}
OF_K = {"discriminator": {"propertyName": "k"}}
REFS = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
UNION = DEFS | {"properties": {"x": OF_K | {"oneOf": REFS}}, "required": ["x"]}
NEVER: Any = {"not": {}}


@pytest.fixture(scope="module")
def backend() -> Any:
    made = pytest.importorskip("paged_backends.grammar.llguidance_grammar")
    return made.LlguidanceGrammar(LlguidanceSettings(), GrammarContext(vocabulary=VOCABULARY))


def takes(backend: Any, text: str, **form: Any) -> bool:
    """Return whether a text has a form."""
    return fits(backend.compile(StructuredOutputs(**form)).matcher(), text)


def fits(matcher: Any, text: str) -> bool:
    try:
        for byte in text.encode():
            matcher.accept(VOCABULARY.token_bytes.index(bytes([byte])))
    except ValueError:
        return False
    return bool(matcher.is_at_end)


@pytest.mark.parametrize(
    ("given", "made", "left_out"),
    [
        pytest.param({"propertyNames": A, "items": A}, {"items": A}, [], id="names are text"),
        pytest.param({"propertyNames": {"minLength": 2}}, {}, ["propertyNames"], id="names"),
        pytest.param(A | {"format": "password"}, A, ["format 'password'"], id="format"),
        pytest.param(A | {"format": "date"}, A | {"format": "date"}, [], id="a format to enforce"),
        pytest.param(B | {"format": "int32"}, B | {"format": "int32"}, [], id="not of a text"),
        pytest.param({"uniqueItems": False}, {}, [], id="items not unique"),
        pytest.param({"uniqueItems": True}, {}, ["uniqueItems"], id="items unique"),
        pytest.param(
            {"not": {"uniqueItems": True}},
            {"not": {"uniqueItems": True}},
            [],
            id="what may not be is not relaxed",
        ),
        pytest.param(
            {"dependentRequired": {"a": ["b"]}}, {}, ["dependentRequired"], id="dependent"
        ),
        pytest.param(
            {"properties": {"a": NEVER, "not": A}, "additionalProperties": NEVER},
            {"properties": {"a": False, "not": A}, "additionalProperties": False},
            [],
            id="never",
        ),
        pytest.param(
            {"properties": {"a": A}, "unevaluatedProperties": False},
            {"properties": {"a": A}, "additionalProperties": False},
            [],
            id="nothing unevaluated",
        ),
        pytest.param(
            {"additionalProperties": A, "unevaluatedProperties": False},
            {"additionalProperties": A},
            [],
            id="all evaluated",
        ),
        pytest.param(
            {"allOf": [A], "unevaluatedProperties": False},
            {"allOf": [A]},
            ["unevaluatedProperties"],
            id="nothing unevaluated in parts",
        ),
        pytest.param(
            UNION,
            UNION | {"properties": {"x": {"anyOf": [each | {"required": ["k"]} for each in REFS]}}},
            [],
            id="a union by tag",
        ),
        pytest.param(
            OF_K | {"oneOf": [tagged("a"), tagged("b", "k")]},
            {"anyOf": [tagged("a", "k"), tagged("b", "k")]},
            [],
            id="a union by tag, in place",
        ),
        pytest.param(
            OF_K | {"oneOf": [tagged("a"), tagged("a")]},
            {"anyOf": [tagged("a"), tagged("a")]},
            ["oneOf"],
            id="a union by a tag that tells nothing",
        ),
        pytest.param(
            DEFS | {"oneOf": REFS}, DEFS | {"anyOf": REFS}, ["oneOf"], id="a union without a tag"
        ),
        pytest.param(
            OF_K | {"oneOf": [{"oneOf": [tagged("a"), tagged("b")]} | OF_K, tagged(7)]},
            {
                "anyOf": [
                    {"anyOf": [tagged("a", "k"), tagged("b", "k")], "required": ["k"]},
                    tagged(7, "k"),
                ]
            },
            [],
            id="a union of unions, by texts and numbers",
        ),
        pytest.param({"oneOf": [A, B]}, {"oneOf": [A, B]}, [], id="types that differ"),
        pytest.param(
            {"oneOf": [{"const": 1}, {"enum": [2, 3]}]},
            {"oneOf": [{"const": 1}, {"enum": [2, 3]}]},
            [],
            id="values that differ",
        ),
        pytest.param(
            {"pattern": DECIMAL}, {"pattern": r"^[+-]?0*\d*\.?\d*$"}, ["look-around of a pattern"]
        , id="look-around"),
        pytest.param(
            {"pattern": r"(?<=a(b|[)]))c\b[(?!]\(?=(?:d)"},
            {"pattern": r"c[(?!]\(?=(?:d)"},
            ["look-around of a pattern"],
            id="look-around and brackets",
        ),
        pytest.param({"pattern": "(?=a"}, {"pattern": "(?=a"}, [], id="no pattern"),
        pytest.param(B | {"nullable": True}, {"type": ["integer", "null"]}, [], id="nullable"),
        pytest.param(
            A | {"enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
            [],
            id="a nullable choice",
        ),
        pytest.param(
            {"$ref": "#/$defs/a", "nullable": True},
            {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
            [],
            id="a nullable reference",
        ),
        pytest.param(A | {"nullable": False}, A, [], id="not nullable"),
        pytest.param(
            {"enum": [{"nullable": True, "format": "x"}], "default": {"uniqueItems": False}},
            {"enum": [{"nullable": True, "format": "x"}], "default": {"uniqueItems": False}},
            [],
            id="values are no schemas",
        ),
        pytest.param(
            {"properties": {"format": X, "type": {"anyOf": [X]}}},
            {"properties": {"format": A, "type": {"anyOf": [A]}}},
            ["format 'x'"],
            id="names of properties are no keywords",
        ),
        pytest.param(True, True, [], id="true"),
    ],
)  # fmt: skip
def test_a_schema_is_relaxed_by_name(given: Any, made: Any, left_out: list[str]) -> None:
    before = json.dumps(given)
    assert as_grammars_take_it(given, strict=False) == (made, left_out)
    assert json.dumps(given) == before


@pytest.mark.parametrize(
    "choices",
    [
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a/b"}],
        [5, {"type": 5}],
        [{"type": [{}]}, {"const": {}}],
        [{"type": "object", "properties": {"k": 5}}, {"oneOf": 5}],
    ],
    ids=["circles", "no types", "lists of none", "no properties"],
)
def test_alternatives_that_are_none_are_left_to_the_grammar(choices: Any) -> None:
    given = OF_K | {"oneOf": choices, "$defs": {"a": OF_K | {"oneOf": [{"$ref": "#/$defs/a"}]}}}
    made, left_out = as_grammars_take_it(given, strict=False)
    assert (made["anyOf"], left_out) == (choices, ["oneOf"])


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
def test_a_union_is_told_by_its_tag(backend: Any, strict: bool) -> None:
    made, _ = as_grammars_take_it(UNION | {"type": "object"}, strict=strict)
    texts = ['{"k":"a","a":1}', '{"k":"b","b":1}', '{"a":1}', '{"k":"a","b":1}']
    taken = [takes(backend, f'{{"x":{text}}}', json=made) for text in texts]
    assert taken == [True, True, False, False]


def test_what_a_strict_schema_names_is_all_that_an_object_has() -> None:
    part = {"type": "object", "properties": {"a": A}}
    is_open = {"type": "object", "properties": {"a": A}, "additionalProperties": B}
    whole = {"$defs": {"d": part}, "properties": {"x": part, "y": is_open}, "required": ["x"]}
    made, _ = as_grammars_take_it(whole, strict=True)
    closed = part | {"additionalProperties": False}
    assert made["$defs"]["d"] == made["properties"]["x"] == closed
    assert made["properties"]["y"] == is_open
    assert made["additionalProperties"] is False
    joined = {"allOf": [part, {"properties": {"b": B}}], "properties": {"c": A}}
    assert as_grammars_take_it(joined, strict=True)[0] == joined


@pytest.mark.parametrize("left_out", ["not", "if", "contains", "unevaluatedProperties"])
def test_what_would_make_a_grammar_wrong_is_refused(backend: Any, left_out: str) -> None:
    made, _ = as_grammars_take_it({"type": "object", left_out: {"const": 1}}, strict=True)
    with pytest.raises(RequestError, match=left_out):
        backend.compile(StructuredOutputs(json=made))


@pytest.mark.parametrize("seed", range(4))
def test_numbers_are_within_their_bounds(backend: Any, seed: int) -> None:
    """Above all whole numbers that are a bound themselves."""
    random = Random(seed)
    for _ in range(40):
        low = random.choice([random.randrange(-3, 3), round(random.uniform(-3, 3), 2)])
        high = low + random.choice([0.1, 0.5, 0.97, 1, 3.5])
        if random.random() < 0.5:
            low, high = -high, -low
        keys = (
            random.choice(["minimum", "exclusiveMinimum"]),
            random.choice(["maximum", "exclusiveMaximum"]),
        )
        low, high = round(low, 2), round(high, 2)
        schema = {"type": "number", keys[0]: low, keys[1]: high}
        for number in (low, high, math.floor(low), math.ceil(high), (low + high) / 2):
            for text in (f"{number:.0f}", f"{number:.1f}", f"{number:.2f}", f"{number:g}"):
                value = Decimal(text)
                is_above = (
                    value >= Decimal(str(low))
                    if keys[0] == "minimum"
                    else value > Decimal(str(low))
                )
                top = Decimal(str(schema[keys[1]]))
                is_below = value <= top if keys[1] == "maximum" else value < top
                if takes(backend, text, json=schema):
                    assert is_above and is_below, (schema, text)


@pytest.mark.parametrize("kind", ["integer", "number", ["integer", "null"]], ids=str)
def test_large_bounds_let_no_number_in_that_is_beyond_them(backend: Any, kind: Any) -> None:
    random, num_taken = Random(str(kind)), 0
    for _ in range(20):
        low = random.choice([-1, 1]) * (1 << random.randrange(53, 67)) + random.randrange(-2, 3)
        high = low + random.choice([0, 1, 7, 1 << 12, 1 << 60])
        bounds = {random.choice(["minimum", "exclusiveMinimum"]): low}
        bounds |= {random.choice(["maximum", "exclusiveMaximum"]): high}
        least, most = low + ("minimum" not in bounds), high - ("maximum" not in bounds)
        try:
            compiled = backend.compile(StructuredOutputs(json=json.dumps({"type": kind, **bounds})))
        except RequestError:
            continue
        near = (each + step for each in (low, high) for step in range(-1025, 1026, 205))
        for number in {*range(low - 2, low + 3), *range(high - 2, high + 3), *near}:
            for text in (f"{number}", str(Decimal(repr(float(number))).quantize(1))):
                is_taken = fits(compiled.matcher(), text)
                num_taken += is_taken
                assert not is_taken or least <= int(text) <= most, (bounds, text)
    assert num_taken > 30


@pytest.mark.parametrize("number", [2**53 + 1, 1234567890123456789, -(2**63), 2**64, 10**400])
def test_numbers_that_would_be_rounded_are_refused(backend: Any, number: int) -> None:
    parts: list[Any] = [{"const": number}, {"enum": ["x", {"a": [number]}]}]
    for part in parts:
        with pytest.raises(RequestError, match="would be rounded; ask for it as a string"):
            backend.compile(StructuredOutputs(json=json.dumps({"properties": {"id": part}})))
    assert takes(backend, f"{2**60}", json={"const": 2**60})


@pytest.mark.parametrize("in_call", [False, True], ids=["form", "call"])
def test_a_bound_that_is_not_included_is_left_out(backend: Any, in_call: bool) -> None:
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}
    form = {"grammar": f"start: a\na: %json {json.dumps(schema)}"} if in_call else {"json": schema}
    assert [takes(backend, each, **form) for each in ("0", "0.0", "0.05", "0.1", "0.2")] == [
        *(False, False, True, True, False),
    ]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"regex": r"\d"}, "3"),
        ({"regex": r"[\d.]"}, "3."),
        ({"regex": r"[^\D]"}, "3"),
        ({"regex": r"\D"}, "a.٣"),
        ({"regex": r"\\d?"}, ""),
        ({"grammar": r'start: /\d/ | "\\d" // a /\d/ comment'}, "3"),
        ({"json": {"type": "string", "pattern": r"^\d$"}}, ""),
    ],
    ids=[
        "digit",
        "in a class",
        "in an inverted class",
        "no digit",
        "a backslash",
        "lark",
        "schema",
    ],
)
def test_digits_are_those_of_ascii(backend: Any, form: Any, expected: str) -> None:
    assert "".join(each for each in "3a.٣" if takes(backend, each, **form)) == expected
    assert not takes(backend, '"٣"', **form)


@pytest.mark.parametrize(
    "grammar",
    [
        '?start: "a"',
        '!start: "a"',
        '// x ::= y\n\n?start: b\nb: "a"',
        '# a comment\nstart: "a" | "::="',
        '%ignore " "\nstart: "a"',
        'root ::= "a"',
        '# start: x\nroot ::= b\nb ::= "a"',
        'root::="a"',
    ],
    ids=[
        "?",
        "!",
        "comment",
        "comment #",
        "directive",
        "gbnf",
        "gbnf with a comment",
        "gbnf, narrow",
    ],
)
def test_the_notation_of_a_grammar_is_told_by_its_rules(backend: Any, grammar: str) -> None:
    assert takes(backend, "a", grammar=grammar)
    assert not takes(backend, "b", grammar=grammar)


def test_between_parts_of_json_is_a_space_at_most(backend: Any) -> None:
    schema = {"type": "object", "properties": {"a": B}, "required": ["a"]}
    for text in ('{"a":1}', '{ "a" : 1 }'):
        assert takes(backend, text, json=schema)
    for text in ('{  "a":1}', '{\n"a":1}', '{"a":\t1}'):
        assert not takes(backend, text, json=schema)
