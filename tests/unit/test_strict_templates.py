"""Chat templates get conversations in a shape that they take, whatever clients send."""

from __future__ import annotations

from typing import Any

import pytest

from paged_backends.text.chat_template import ChatTemplate
from paged_core.errors import RequestError

SHOWS = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %};"
    "{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endif %};{% endfor %}"
)
JOINS = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
TRIMS = "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}"
TOOL_PARTS = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'tool' %}{% for p in m.content %}"
    "{{ p.text }}{% endfor %}{% else %}{{ m.content + ';' }}{% endif %}{% endfor %}"
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)
DROPS_LATE = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('must alternate') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endif %}"
    "{% endfor %}"
)
TURNS = (
    "{% if messages[0].role == 'system' %}{{ 'system:' + messages[0].content + ';' }}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% set ns = namespace(n=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('alternate!') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}"
    "{% if m.role not in ('user', 'assistant', 'tool') %}{{ raise_exception('no') }}{% endif %}"
    "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% if c.id|length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "<{{ c.id }}>{% endfor %}{% if m.tool_call_id %}"
    "{% if m.tool_call_id|length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "<{{ m.tool_call_id }}>{% endif %};{% endfor %}"
)
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls|length != 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}<{{ m.tool_calls[0].id }}>{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)


def render(template: str, messages: Any, **options: Any) -> str:
    return ChatTemplate({"default": template}, {}).render(messages, **options)


def said(*pairs: str) -> list[dict[str, Any]]:
    """Return messages: ``s`` a system message, ``d`` a developer's, ``u`` a user's and so on."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[pair[0]], "content": pair[2:]} for pair in pairs]


def called(*ids: str, results: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    calls = [{"id": each, "type": "function", "function": {"name": "f"}} for each in ids]
    return [
        {"role": "assistant", "content": "", "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": each, "content": f"of {each}"}
            for each in results or ids
        ),
    ]


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        pytest.param(SHOWS, "s:A u:B s:C", "system:A;user:B;system:C;", id="as it is"),
        pytest.param(SYSTEM_FIRST, "s:A s:B u:C d:D", "system:A\n\nB\n\nD;user:C;", id="merged"),
        pytest.param(SYSTEM_FIRST, "u:A s:B", "system:B;user:A;", id="late"),
        pytest.param(DROPS_LATE, "s:A u:B s:C", "system:A\n\nC;user:B;", id="dropped late"),
        pytest.param(NO_SYSTEM, "s:A u:B", "user:A\n\nB;", id="no role"),
        pytest.param(
            NO_SYSTEM, "s:A u:B u:C a:D s:E", "user:A\n\nE\n\nB\n\nC;assistant:D;", id="all"
        ),
        pytest.param(NO_SYSTEM, "s:A", "user:A;", id="no user"),
        pytest.param(DROPS_SYSTEM, "s:A u:B", "user:A\n\nB;", id="dropped"),
        pytest.param(
            TURNS, "s:A u:B u:C a:D a:E", "system:A;user:B\n\nC;assistant:D\n\nE;", id="in a row"
        ),
        pytest.param(TURNS, "u:A s:B u:C", "system:B;user:A\n\nC;", id="late in a row"),
        pytest.param(
            TURNS, "u:A t:B u:C", "user:A;tool:B;assistant:;user:C;", id="a user after a result"
        ),
    ],
)  # fmt: skip
def test_a_strict_template_gets_a_shape_that_it_takes(
    template: str, messages: str, expected: str
) -> None:
    assert render(template, said(*messages.split())) == expected


@pytest.mark.parametrize("given", ["text", "parts"])
@pytest.mark.parametrize(
    ("template", "space"),
    [
        pytest.param(SHOWS, " ", id="prints"),
        pytest.param(JOINS, " ", id="joins"),
        pytest.param(PARTS, "", id="iterates"),
        pytest.param(EITHER, "", id="either"),
    ],
)
def test_content_is_what_the_template_reads(template: str, space: str, given: str) -> None:
    parts = [{"type": "text", "text": "A "}, {"type": "input_text", "text": "B"}]
    for role in ("user", "assistant", "system"):
        messages = said("u:x", "u:x")
        messages[role != "system"] = {"role": role, "content": parts if given == "parts" else "A B"}
        found = render(template, messages)
        assert f"{role}:A {space if given == 'parts' else ''}B;" in found
        assert "user:x;" in found


def test_content_is_read_role_by_role() -> None:
    messages = [*said("u:A"), *called("abcdefghi")]
    assert render(TOOL_PARTS, messages) == "user:A;assistant:;tool:of abcdefghi"


@pytest.mark.parametrize("ids", [("call_1", "call_2"), ("toolu_01AbCdEfGhIjKl", "x"), ("", "ü😀")])
def test_ids_are_rewritten_alike_in_calls_and_results(ids: tuple[str, ...]) -> None:
    conversation = [*said("u:A"), *called(*ids)]
    found = render(TURNS, conversation)
    first, second = (found.split("<")[n].split(">")[0] for n in (1, 2))
    assert [found.count(f"<{each}>") for each in (first, second)] == [2, 2]
    assert first.isalnum() and second.isalnum()
    assert render(TURNS, [*conversation, *said("a:B", "u:C")]).startswith(found)  # the prefix stays


def test_ids_that_a_template_takes_stay() -> None:
    assert "<abcdefghi>" in render(TURNS, [*said("u:A"), *called("abcdefghi")])
    assert "<call_1>" in render(ONE_CALL, [*said("u:A"), *called("call_1")])


def test_each_call_gets_a_message_where_a_template_takes_one() -> None:
    found = render(
        ONE_CALL, [*said("u:A"), *called("1", "2", results=("2", "1", "3")), *said("a:B")]
    )
    assert found == (
        "user:A;<1>assistant:;tool:of 1;<2>assistant:;tool:of 2;tool:of 3;assistant:B;"
    )


@pytest.mark.parametrize(
    "template",
    [SHOWS, PARTS, EITHER, JOINS, NO_SYSTEM, TURNS, TRIMS],
    ids=["prints", "iterates", "either", "joins", "no system", "turns", "trims"],
)
@pytest.mark.parametrize("content", ["B", "B ", " B \n", "B\n\n  ", "", "  "])
@pytest.mark.parametrize("given", ["text", "parts"])
def test_a_last_message_goes_on_whatever_space_is_around_it(
    template: str, content: str, given: str
) -> None:
    last: Any = [{"type": "text", "text": content}] if given == "parts" else content
    messages = [*said("s:S", "u:A"), {"role": "assistant", "content": last}]
    found = render(template, messages, continue_final_message=True)
    assert found.rstrip().endswith(f"assistant:{content}".rstrip()) or template == TRIMS
    assert found.endswith((f"assistant:{content}", f"assistant:{content.strip()}"))


def test_a_template_that_takes_no_shape_says_why_at_first() -> None:
    refuses = "{{ raise_exception('not ' ~ messages|length) }}"
    with pytest.raises(RequestError, match="refused these messages: not 3"):
        render(refuses, said("s:A", "u:B", "s:C"))


def test_no_prompt_is_empty() -> None:
    with pytest.raises(RequestError, match="an empty prompt"):
        render("{% for m in messages if m.role == 'x' %}{{ m.content }}{% endfor %}", said("u:A"))
