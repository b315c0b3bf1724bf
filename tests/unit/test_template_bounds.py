"""A chat template is a program from a stranger: what it may do is bounded, what it says is not."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from paged_backends.text import template_bounds
from paged_backends.text.chat_template import ChatTemplate
from paged_backends.text.template_bounds import BoundedEnvironment
from paged_core.errors import RequestError

pytestmark = pytest.mark.heavy


GROWING = (
    "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set ns.x = {grown} %}}"
    "{{% endfor %}}{{{{ ns.x }}}}"
)
NAMESPACES = "{% set a = namespace(x=1) %}{% set a.x = a %}"

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "loops that skip": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "recursive loops": "{% for a in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "text in a loop": "{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "constants in a loop": "{% for a in range(99999) %}{{ '" + "x" * 9999 + "' }}{% endfor %}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "macros that branch": "{% macro f(n) %}{% if n %}{% set a = f(n-1) %}{% set b = f(n-1) %}"
    "{% endif %}{% endmacro %}{{ f(60) }}",
    "blocks within blocks": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 18
    + "x" * 999
    + "{% endcall %}" * 18,
    "searches": "{% set a = 'x' * 300000 ~ 'y' %}" + "{% for i in range(99999) %}" * 2
    + "{% if 'y' in a %}{% endif %}" + "{% endfor %}" * 2,
}  # fmt: skip
EXPANDING = {
    "x times": "{{ 'x' * 10**10 }}",
    "lists": "{{ ['x'] * 10**10 }}",
    "joined": GROWING.format(start="'ab'", grown="ns.x ~ ns.x"),
    "added": GROWING.format(start="'ab'", grown="ns.x + ns.x"),
    "added lists": GROWING.format(start="['ab']", grown="ns.x + ns.x"),
    "lists in lists": GROWING.format(start="['ab']", grown="[ns.x, ns.x]"),
    "objects in objects": GROWING.format(start="['ab']", grown="dict(a=ns.x, b=ns.x)"),
    "literal objects": GROWING.format(start="['ab']", grown="{'a': ns.x, 'b': ns.x}"),
    "blocks": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}"
    "{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "powers": "{{ 9**9**9**9 }}",
    "squares": GROWING.format(start="3", grown="ns.x * ns.x"),
    "center": "{{ 'x'|center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "format": "{{ '%10000000000d'|format(1) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent, computed": "{{ '%*d' % (10**10, 1) }}",
    "braces": "{{ '{:>10000000000}'.format(1) }}",
    "braces, computed": "{{ '{:>{w}}'.format(1, w=10**10) }}",
    "a mapping": "{{ '{x:>9999999999}'.format_map({'x': 1}) }}",
    "replace": "{{ ('x' * 10000)|replace('x', 'y' * 10000) }}",
    "replace everywhere": "{{ ('x' * 10000).replace('', 'y' * 100000) }}",
    "join": "{{ range(99999)|join('x' * 100000) }}",
    "join of a map": "{{ ('x' * 100000).join(range(99999)|map('string')) }}",
    "indent": "{{ ('x\\n' * 100000)|indent(10000) }}",
    "tojson": "{{ range(9999)|list|tojson(indent=10**7) }}",
    "separators": "{{ ([1] * 1000)|tojson(separators=['x' * 100000, 'y']) }}",
    "batch": "{{ [1]|batch(10**10, 'x')|list }}",
    "slice": "{{ [1]|slice(10**10)|list }}",
    "range": "{{ range(10**18)|list }}",
    "translate": "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "map": "{{ range(99999)|map('string')|map('center', 9999)|join }}",
    "a namespace in itself": NAMESPACES + "{{ a }}",
    "the same, joined": NAMESPACES + "{{ '' ~ a }}",
    "the same, formatted": NAMESPACES + "{{ '%s' % a }}",
    "the same, filtered": NAMESPACES + "{{ a|string }}",
    "the same, listed": NAMESPACES + "{{ [a]|string }}",
    "a date": "{{ strftime_now('%9999999999Y') }}",
    "words": "{{ lipsum(n=10**9) }}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a long sum": "{{ " + "+".join("1" * 5000) + " }}",
    "a long template": "x" * (2 << 20),
    "an error": "{{ raise_exception('x\\n' * 100000) }}",
}
HARMLESS = [
    "{{ messages|tojson }}{{ messages|tojson(indent=2) }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ m }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m['content']|trim }}{% else %}no{% endfor %}",
    "{% for a, b in messages[0].items() %}{{ a ~ '=' ~ b ~ 1 ~ none }}{% endfor %}",
    "{% macro f(x, y='z') %}[{{ x }}{{ y }}]{% endmacro %}{{ f(1) }}{{ f(x=2, y=3) }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.n }}{{ ns.l|length }}{{ ns.l }}",
    "{{ messages[0].content.split('b')[0].rstrip('\n').lstrip() }}{{ 'a,b'.replace(',', ' ') }}",
    "{{ messages|map(attribute='role')|join(', ') }}{{ ('a', 'b')|join }}{{ [1, 2][::-1] }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
    "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2**8 }}",
    "{{ '%s and %d' % ('x', 5) }}{{ '{} {a}'.format(1, a=2) }}{{ '=' * 20 }}{{ 'x'|center(9) }}",
    "{% if 'user' in ('user', 'tool') and x is not defined %}yes{% endif %}{{ 'a\nb'|indent(4) }}",
    "{% set x %}in a block{% endset %}{{ x|upper }}{{ x is string }}{{ x|replace('in', 'on') }}",
    "{% for row in range(7)|batch(3, '-') %}{{ row|join }}{% endfor %}",
    "{{ {'a': {'b': 1}}|items|list }}",
    "{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "{{ 1700000000 * 1000 + 1 }}{{ 10.5 * 2 }}{{ -1|abs }}{{ '12'|int + 1 }}",
    "{{ none|default('d', true) }}{{ 5|format }}",
]
MESSAGES = [{"role": "user", "content": " a b\n"}, {"role": "assistant", "content": "ü"}]


def render(source: str, messages: Any = MESSAGES, **options: Any) -> str:
    return ChatTemplate({"default": source}, {}).render(messages, **options)


@pytest.mark.parametrize("name", [*ENDLESS, *EXPANDING])
def test_work_has_a_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "nested loops":
        monkeypatch.setattr(template_bounds, "_UNITS", 10**6)
    source = ENDLESS.get(name) or EXPANDING[name]
    with pytest.raises(RequestError, match="refused these messages") as raised:
        render(source)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("source", HARMLESS)
def test_what_templates_do_is_as_jinja_does_it(source: str) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    assert render(source) == plain.from_string(source).render(messages=MESSAGES)


def test_a_long_conversation_is_no_endless_loop() -> None:
    turns = [{"role": "user", "content": "word " * 200}] * 5000
    source = (
        "{% set ns = namespace(seen=[]) %}{% for m in messages %}"
        "{% set ns.seen = ns.seen + [m.role] %}"
        "{% if m.content is string and m.content|length %}{{ m.role ~ ': ' ~ m.content|trim }}\n"
        "{% endif %}{% endfor %}"
    )  # fmt: skip
    assert len(render(source, turns[:1000])) > 1_000_000
    assert len(render("{% for m in messages %}{{ m.content }}{% endfor %}", turns)) == 5_000_000


def test_messages_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    nested: list[Any] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    endless: list[Any] = []
    endless.append(endless)
    monkeypatch.setattr(template_bounds, "_MAX_DATA", 10**6)
    for content in (nested, endless):
        with pytest.raises(RequestError, match=r"too large|nested"):
            render("x", [{"role": "user", "content": content}])
        with pytest.raises(RequestError, match=r"too large|nested"):
            render("x", tools=[{"a": content}])


def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(
        {"default": "once: {% for m in messages %}{{ m.content }}{% endfor %}"}, {}
    )
    first = template.render(MESSAGES)
    monkeypatch.setattr(BoundedEnvironment, "compile", None)
    for messages in (MESSAGES, MESSAGES * 2):
        assert template.render(messages).startswith(first)
    with pytest.raises(RequestError, match="not callable"):
        template.render(MESSAGES, chat_template="another one")


def test_templates_to_choose_from_are_named_within_bounds() -> None:
    names = {f"{number:04} " + "long " * 1000: "x" for number in range(1000)}
    with pytest.raises(RequestError, match=r"pass one as chat_template: .*0000 long") as told:
        ChatTemplate(names, {}).render(MESSAGES)
    assert len(str(told.value)) < 1000
