"""A checkpoint's chat template: Jinja that turns a conversation into the text of a prompt.

The rules are those of ``apply_chat_template`` of ``transformers``: the same sandbox, helpers and
files, without importing that library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser

from paged_backends.checkpoint.json_file import damaged, one_line, read_text
from paged_backends.text.template_bounds import BoundedEnvironment, TemplateTooCostly
from paged_core.errors import CheckpointError, RequestError
from paged_core.field_rules import shown

_TEXT = ("text", "input_text", "output_text")


def with_joined_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose content is one text; a space joins parts, as in ``transformers``.

    Raises:
        RequestError: a part is not text.
    """
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": " ".join(map(_text, content))}


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(
            "a part of a message's content is a dictionary such as {'type': 'text', 'text': "
            f"'Hello'}}, not a {type(part).__name__}"
        )
    kind, text = part.get("type"), part.get("text")
    if not isinstance(kind, str) or kind not in _TEXT:
        raise RequestError(
            f"a part of a message's content has the type {shown(kind)}, which the models here "
            "cannot read; give parts of type 'text'"
        )
    if not isinstance(text, str):
        raise RequestError(f"a part of type {kind!r} needs a 'text' that is text")
    return text


_MAX_SEPARATORS, _MAX_INDENT = 50, 100
"""Characters of JSON's separators and of its indent, at most."""
_CUT = "END_OF_THE_MESSAGE_TO_GO_ON_WITH "
"""Put after it; a template that trims the message trims the space."""
_MAX_FORM = 1000
"""Characters of the format of a date."""


@dataclass
class ChatTemplate:
    """The templates of one checkpoint, compiled when they are used."""

    sources: Mapping[str, str]
    """By name: ``default``, and perhaps ``tool_use`` and others."""
    special_tokens: Mapping[str, str]
    """``bos_token``, ``eos_token`` and the like, as templates call them."""

    @classmethod
    def find(
        cls, folder: Path, config: Mapping[str, Any], special_tokens: Mapping[str, str]
    ) -> ChatTemplate:
        """Collect the templates of a checkpoint: files override its configuration.

        Args:
            config: the content of ``tokenizer_config.json``.

        Raises:
            CheckpointError: a template is not text.
        """
        sources: dict[str, str] = {}
        listed = config.get("chat_template")
        if isinstance(listed, str):
            sources["default"] = listed
        elif isinstance(listed, list):
            sources.update(map(_named_template, listed))
        elif listed is not None:
            raise _wrong_templates(listed)
        for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
            sources[path.stem] = read_text(path)
        path = folder / "chat_template.jinja"
        if path.exists():
            sources["default"] = read_text(path)
        return cls(sources, special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the text of the conversation.

        Args:
            messages: dictionaries with ``role`` and, usually, ``content``.
            options: ``add_generation_prompt`` (``True``), ``continue_final_message`` (``False``:
                leave the last message open), ``tools`` and ``documents`` (lists of dictionaries),
                ``chat_template`` (a name or the template itself); the template sees all others.

        Raises:
            RequestError: there is no template, it refuses the messages, they are malformed, or
                it does more than any template needs: see :mod:`.template_bounds`.
        """
        try:
            environment = _environment((messages, options))
        except TemplateTooCostly as error:
            raise RequestError(f"the messages are too large: {error}; shorten them") from error
        messages = _checked(messages)
        tools = options.pop("tools", None) or None
        source = self._choose(options.pop("chat_template", None), bool(tools))
        go_on = options.pop("continue_final_message", False)
        options.setdefault("add_generation_prompt", not go_on)
        options.setdefault("documents", None)
        if go_on:
            messages = _with_cut(messages, options)
        variables = {**self.special_tokens, **_plain(options), "tools": _plain(tools)}
        try:
            template = environment.from_string(source)
            text = template.render(messages=messages, **variables)
        except TemplateSyntaxError as error:
            raise RequestError(
                f"the chat template is not valid Jinja (line {error.lineno}: "
                f"{one_line(error.message, 300)}); pass another as chat_template, or send a plain "
                "prompt"
            ) from error
        except Exception as error:  # a template is a program
            raise RequestError(
                f"the chat template refused these messages: {one_line(error, 300)}; change the "
                "messages, or pass another template as chat_template"
            ) from error
        return _cut(text, messages) if go_on else text

    def _choose(self, wanted: str | None, with_tools: bool) -> str:
        if wanted is not None:
            return self.sources.get(wanted, wanted)
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self.sources:
                return self.sources[name]
        if self.sources:
            raise RequestError(
                "the checkpoint has several chat templates and none called `default`; pass one of "
                f"{', '.join(sorted(self.sources))} as chat_template"
            )
        raise RequestError(
            "the checkpoint has no chat template (neither chat_template.jinja nor an entry in "
            "tokenizer_config.json): it was not made for conversations; send a plain prompt, or "
            "pass a template as chat_template"
        )


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(data: Any) -> BoundedEnvironment:
    environment = BoundedEnvironment(
        data,
        {"tojson": _tojson},
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, loopcontrols],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _dict
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's filter, which escapes HTML, because no model was trained on that."""
    if len(str(separators)) > _MAX_SEPARATORS or (indent or 0) > _MAX_INDENT:
        raise TemplateError("JSON is written with short separators and a small indent")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _named_template(entry: object) -> tuple[str, str]:
    if isinstance(entry, Mapping):
        name, source = entry.get("name"), entry.get("template")
        if isinstance(name, str) and isinstance(source, str):
            return name, source
    raise _wrong_templates(entry)


def _wrong_templates(value: object) -> CheckpointError:
    return damaged(
        "chat_template in tokenizer_config.json is a template, or a list of objects with a name "
        f"and a template, and not {shown(value)}"
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_FORM or re.search(r"%[^a-zA-Z%]*\d", form):
        raise TemplateError("a date is formatted without widths")
    return datetime.now().strftime(form)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copy the messages as plain data, so that a template cannot call methods of our objects."""
    if not isinstance(messages, list | tuple) or not all(
        isinstance(message, Mapping) for message in messages
    ):
        raise RequestError(
            "a conversation is a list of messages such as {'role': 'user', 'content': 'Hello'}"
        )
    if not messages:
        raise RequestError("the conversation is empty; it needs at least one message")
    for message in messages:
        if "role" not in message:
            raise RequestError(
                f"a message has no role (user, assistant, system, ...): {shown(message)}"
            )
    return [_plain(with_joined_text(message)) for message in messages]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        names = (key if isinstance(key, str) else shown(key) for key in value)
        return dict(zip(names, map(_plain, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise RequestError(
        f"a chat template takes plain data (text, numbers, lists, dictionaries), not "
        f"{type(value).__name__}"
    )


def _with_cut(messages: list[dict[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Mark the end of the last message's content, to cut there what the template adds after it."""
    if options["add_generation_prompt"]:
        raise RequestError(
            "continue_final_message and add_generation_prompt contradict each other; set one"
        )
    last = messages[-1]
    if not isinstance(last.get("content"), str):
        raise RequestError("continue_final_message needs a last message whose content is text")
    return [*messages[:-1], {**last, "content": last["content"] + _CUT}]


def _cut(text: str, messages: list[dict[str, Any]]) -> str:
    """Return the text up to the mark, by the rule of ``transformers``: without spaces at its end
    if the template trims the message, and so would not have them inside a longer one.
    """
    head, found, rest = text.rpartition(_CUT.rstrip())
    if not found or messages[-1]["content"].removesuffix(_CUT).strip() not in text:
        raise RequestError(
            "continue_final_message is set, but the chat template leaves the last message "
            f"({messages[-1]['role']}) out, or part of it"
        )
    return head if rest.startswith(" ") else head.rstrip()
