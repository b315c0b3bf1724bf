"""JSON that grows is followed to its end, and made JSON where models write something else."""

from __future__ import annotations

import json

import pytest

from paged_plugins.server.parsers.json_text import MAX_DEPTH, JsonText, mended

DEEP = "[" * (MAX_DEPTH - 1)
WRITTEN = {
    # JSON stays as it is
    '{ "a" : [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00\\n"] , "b" : { } }': None,
    '{"a":' + DEEP + "1" + "]" * (MAX_DEPTH - 1) + "}": None,
    '{"a": 123456789012345678901234567890}': None,
    # strings
    '{"a": "l\nm\t\0"}': '{"a": "l\\nm\\t\\u0000"}',
    r'{"a": "\d\x41\'\u12"}': r"""{"a": "\\d\\x41'\\u12"}""",
    '{"a": "\\ud83d", "b": "\\ude00\\ud83d\\ud83d\\ude00", "c": "\ud83d"}': (
        '{"a": "\\ufffd", "b": "\\ufffd\\ufffd\\ud83d\\ude00", "c": "\\ufffd"}'
    ),
    "{'a': 'it\\'s \"so\"'}": '{"a": "it\'s \\"so\\""}',
    # words
    '{"a": True, "b": None, c: NaN, "d": -Infinity}': (
        '{"a": true, "b": null, "c": null, "d": null}'
    ),
    '{"a": .5, "b": 1_000, "c": yes}': '{"a": 0.5, "b": 1000.0, "c": "yes"}',
    '{"a": 1e999, "b": ' + "9" * 5000 + "}": '{"a": "1e999", "b": "' + "9" * 5000 + '"}',
    # commas, brackets
    '{"a": (1, 2,), "b": [3 4], "c" : }': '{"a": [1, 2], "b": [3 ,4]}',
    # cut short
    "{": "{}",
    '{"a": {"b": ["x\\u00': '{"a": {"b": ["x"]}}',
    '{"a": "\\ud83d': '{"a": "\\ufffd"}',
    '{"a": 1, "b": tru': '{"a": 1}',
    '{"a": [1, 23': '{"a": [1]}',
    '{"a": 1, "b"': '{"a": 1}',
}


@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_what_models_write_becomes_json_wherever_it_is_cut(number: int) -> None:
    text, wanted = list(WRITTEN.items())[number]
    assert mended(text) == (wanted or text)
    read, pieces = JsonText(), []
    for letter in text:
        assert read.take(letter, 0) == 1
        pieces.append(read.written())
    read.close()
    assert "".join([*pieces, read.written()]) == (wanted or text)
    for end in range(1, min(len(text), 99)):
        assert isinstance(json.loads(mended(text[:end])), dict)


@pytest.mark.parametrize("text", ["[1]", "{} {}", '{"a": @}', '{"a"]', '{"a": ' + DEEP + "[["])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"may|to be|more|deep"):
        mended(text)
