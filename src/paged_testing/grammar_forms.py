"""Forms of text that grammars are tried with, and texts that have them or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_STRING = re.compile(r'"(\\.|[^"\\])*"')

Check = Callable[[str], bool]


def _json(check: Callable[[Any], bool]) -> Check:
    def checked(text: str) -> bool:
        with suppress(ValueError, TypeError):
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


CHOICES = ["yes", "ye", "no: \u4e16\u754c", 'a "quote"', "(1.5)*"]
FORMS: Mapping[str, tuple[Mapping[str, Any], Check]] = {
    "choice": ({"choice": CHOICES}, CHOICES.__contains__),
    "regex": ({"regex": "(ab|12)+-?[0-9]{2}"}, lambda t: bool(re.fullmatch(r"(ab|12)+-?\d\d", t))),
    "letters": ({"regex": "[à-ü]{2}"}, lambda t: bool(re.fullmatch("[à-ü]{2}", t))),
    "none": ({"regex": "ba{0}(c|d{0,0}e)"}, ("bc", "be").__contains__),
    "object": ({"json": _PERSON}, _json(_is_person)),
    "compact": (
        {"json": _PERSON, "disable_any_whitespace": True},
        lambda t: _json(_is_person)(t) and not re.search(r"\s", _STRING.sub("", t)),
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


def _of(name: str, kind: str, *pairs: tuple[Any, Sequence[str], Sequence[str]]) -> dict[str, Any]:
    """Forms of a kind by their names, with texts of the form, and others."""
    return {f"{name} {form}": ({kind: form}, good, bad) for form, good, bad in pairs}


def _object(more: Any, *required: str, **properties: Any) -> dict[str, Any]:
    own = {"type": "object", "properties": properties, "required": list(required)}
    return {**own, "additionalProperties": more}


_INTEGER, _TEXT = {"type": "integer"}, {"type": "string"}
_TREE = {
    "$defs": {
        "t": _object(False, "v", v=_INTEGER, c={"type": "array", "items": {"$ref": "#/$defs/t"}})
    },
    "$ref": "#/$defs/t",
}
TEXTS: Mapping[str, tuple[Mapping[str, Any], Sequence[str], Sequence[str]]] = {
    "regex nested deep": ({"regex": "(" * 1000 + "a" + ")" * 1000}, ["a"], ["b", "aa"]),
    **_of(
        "choice",
        "choice",
        (("ab", "abc", "世界", "世"), ("ab", "abc", "世界", "世"), ("", "a", "abcd", "世世")),
        (("a|b", "^ab$", "[a]", "\\d", "a\nb"), ("a|b", "^ab$", "[a]", "\\d", "a\nb"), ("a", "1")),
    ),
    **_of(
        "regex",
        "regex",
        ("^ab$", ["ab"], ["^ab$", "a", "abb", "^ab"]),
        ("((^|,)[a-c]{2})+", ["ab", "ab,bc"], ["abbc", ",", "ab,"]),
        ("(ab$|b), c", ["b, c"], ["ab, c", "ab"]),
        (r"a\$b\^\{1\}", ["a$b^{1}"], ["ab1", "a\\$b\\^\\{1\\}"]),
        (r"\(\d\.\d\)\\", ["(1.5)\\"], ["(1x5)\\", "(1.5)", "1.5"]),
        (r"\n\t\x41", ["\n\tA"], ["\\n\\tA", "ntA", "\n\tx41"]),
        (r"[a-c_\-\]]+[^0-9a-z]", ["ab_-]Z", "c世"], ["d!", "a1", "!"]),
        (r"[\d.]+\s\w\D", ["1.5 a!", "7\t_x"], ["a a!", "1.5 a1", "1.5a!"]),
        ("a{2}b{1,3}c{2,}d?e*", ["aabcc", "aabbbcccdee"], ["abcc", "aabbbbcc", "aabc", "aabccdde"]),
        ("(a{1,2}b){2}", ["abab", "aabab"], ["ab", "ababab", "aaabab"]),
        ("a+?b", ["ab", "aab"], ["b", "a"]),
        ("ab|c(d|e)", ["ab", "cd", "ce"], ["abcd", "c", "abd", "abe"]),
        ("(?:ab)+(c)?", ["ab", "ababc"], ["aba", "c", "abcc"]),
        ("(ab)?", ["", "ab"], ["a", "abab"]),
        ("a|", ["a", ""], ["aa", "b"]),
        ("a.c", ["abc", "a世c", "a\U0001f600c"], ["a\nc", "ac", "abbc", "a\ud800c"]),
        ("(a*)*(b|c?)+", ["", "aab", "bcb"], ["ba", "d"]),
        ("é+[世-界]", ["é世", "éé界"], ["é", "éa", "e世"]),
        ("[éa]", ["é", "a"], ["e", "à"]),
        ("[à-ü]+", ["é", "éà"], ["a", "é世", "ā"]),
        ("[a-é]", ["b", "à"], ["ê", "A"]),
        ("[^é]", ["a", "à", "世", "\U0001f600"], ["é", "", "\udfff"]),
        ("[世-界]", ["世", "界"], ["a", "é"]),
        (r"\d", ["7"], ["a"]),
        (r"\D", ["a", "é"], ["7"]),
        (r"\w+", ["a_7"], ["!", "a b"]),
        (r"\W", ["!", " "], ["a", "_"]),
        (r"\s\S", [" a", "\té"], ["ab", "  "]),
        ("Ab", ["Ab"], ["ab", "AB"]),
        ("(?i)ab", ["ab", "aB"], ["b", "(?i)ab"]),
        ("(?i:a)b", ["ab", "Ab"], ["aB", "b"]),
    ),
    **_of(
        "json",
        "json",
        (
            {"enum": ["a", 'a"b', 1, None, True]},
            ['"a"', r'"a\"b"', "1", "null", "true"],
            ['"b"', '"', "2", "1.5", "false", '"a"b"'],
        ),
        ({"const": "ab"}, ['"ab"'], ["ab", '"a"', '"abb"']),
        (
            _object(False, "a", a=_INTEGER, b={"type": "boolean"}),
            ['{"a":1}', '{"a":1,"b":true}'],
            ["{}", '{"b":true}', '{"a":1,"c":2}', '{"a":1,}', '{"a":true}', '{"a":1,"a":2}'],
        ),
        (
            _object(_INTEGER, "a", a=_TEXT),
            ['{"a":"x"}', '{"a":"x","c":3}'],
            ['{"a":"x","c":"x"}', '{"a":3}', '{"c":3}'],
        ),
        (_object(False, 'a"b', **{'a"b': _INTEGER}), [r'{"a\"b":1}'], ['{"a"b":1}', '{"ab":1}']),
        (
            {"type": "array", "items": _object(False, "a", a={"type": "array", "items": _INTEGER})},
            ["[]", '[{"a":[1,2]}]', '[{"a":[]},{"a":[3]}]'],
            ['[{"a":[1,"x"]}]', "[{}]", "[1]", '[{"a":[1,]}]'],
        ),
        (_TREE, ['{"v":1}', '{"v":1,"c":[{"v":2,"c":[]}]}'], ['{"c":[]}', '{"v":1,"c":[1]}']),
        ({"type": "number"}, ["0", "-1.5", "1e5", "12"], ["01", "+1", ".5", "1.", "-", '"1"']),
        (_INTEGER, ["0", "-7", "12"], ["1.5", "01", "-", "1e", "true"]),
        ({**_INTEGER, "minimum": 5, "maximum": 12}, ["5", "10", "12"], ["4", "13", "1", "100"]),
        (
            {**_INTEGER, "exclusiveMinimum": -2, "exclusiveMaximum": 2},
            ["-1", "0", "1"],
            ["-2", "2"],
        ),
        ({"type": "number", "minimum": 0.5, "maximum": 2.5}, ["0.5", "2"], ["0.4", "2.6", "3"]),
        (
            _TEXT,
            ['""', '"a"', r'"a\"b\n"', '"é世"', r'"\\"'],
            ["a", '"a"b"', '"\n"', '"\\"', r'"\x"'],
        ),
        (
            {**_TEXT, "minLength": 2, "maxLength": 3},
            ['"ab"', '"世界é"', r'"a\""'],
            ['"a"', '"abcd"', '"世"', r'"\""'],
        ),
        ({"type": ["string", "null"]}, ["null", '"a"'], ["1", "true"]),
        ({"anyOf": [_INTEGER, _object(False, "a", a=_TEXT)]}, ["1", '{"a":""}'], ['""', "{}"]),
        (
            {"type": "array", "prefixItems": [_INTEGER, _TEXT], "items": False, "minItems": 2},
            ['[1,"a"]'],
            ["[]", "[1]", '["a",1]', '[1,"a",2]'],
        ),
    ),
    **_of(
        "grammar",
        "grammar",
        ('root ::= "a" root "b" | "c"', ["c", "acb", "aacbb"], ["acbb", "ac", "ab"]),
        ('root ::= [a-c]+ [^x] ("1" | "2")?', ["ab!1", "c!"], ["ax", "!1", "a!3"]),
        ('root ::= "\\"" [^"\\n]* "\\""', ['"ab"', '""'], ['"a', '"a\n"', '"a"b"']),
        ('start: WORD ("," WORD)*\nWORD: /[a-c]+/', ["ab,c", "a"], ["ab,", ",", "abd"]),
    ),
}
"""By kind and form: the form, texts that have it, and texts that have not."""
LEAST = "choice"
MIXED = (LEAST, "regex", "object", "enumeration", "integers", "either", "nested", "compact")
IMPOSSIBLE: Sequence[Mapping[str, Any]] = (
    {"regex": "(a\nb"},
    {"json": {"type": "no such type"}},
    {"json": {"$ref": "#/$defs/nowhere"}},
    {"json": {"type": "object", "no such keyword that asserts": 1, "not": {}}},
    {"grammar": "no grammar at all ((("},
)
