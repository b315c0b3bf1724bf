"""A checkpoint's chat template: Jinja that turns a conversation into the text of a prompt.

The rules are those of ``apply_chat_template`` of ``transformers``: the same sandbox, helpers and
files, without importing that library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser

from paged_backends.checkpoint.json_file import damaged, one_line, read_json_object, read_text
from paged_backends.text.strict_templates import accepted
from paged_backends.text.template_bounds import BoundedEnvironment, TemplateTooCostly
from paged_core.errors import CheckpointError, RequestError
from paged_core.field_rules import shown

_TEXT = ("text", "input_text", "output_text")


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


_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Names of what an assistant thought before its answer, the first that is there counts."""
_MAX_SEPARATORS, _MAX_INDENT = 50, 100
"""Characters of JSON's separators and of its indent, at most."""
_CUT = "END_OF_THE_MESSAGE_TO_GO_ON_WITH "
"""Put after it; a template that trims the message trims the space."""
_MAX_FORM = 1000
"""Characters of the format of a date."""
_MAX_COMPILED = 16
"""Templates that are kept compiled."""
_MAX_KNOWN = 100
"""Roles of templates of which it is kept what they read."""
_SAMPLE = "Apples Pears"
_SAMPLE_PARTS = [{"type": "text", "text": word} for word in _SAMPLE.split()]
_SAMPLE_CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "sample", "arguments": {}},
}


@dataclass
class ChatTemplate:
    """The templates of one checkpoint, compiled when they are first used."""

    sources: Mapping[str, str]
    """By name: ``default``, and perhaps ``tool_use`` and others."""
    special_tokens: Mapping[str, str]
    """``bos_token``, ``eos_token`` and the like, as templates call them."""
    _takes_parts: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False)
    """By template and role: whether it reads the parts of a content."""

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
        listed, of_processor = config.get("chat_template"), folder / "chat_template.json"
        if listed is None and of_processor.is_file():
            listed = read_json_object(of_processor).get("chat_template")
        if isinstance(listed, str):
            sources["default"] = listed
        elif isinstance(listed, Mapping):
            named = ({"name": name, "template": source} for name, source in listed.items())
            sources.update(map(_named_template, named))
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

        A template that refuses a conversation, or leaves out what its system messages say, is given
        it in other shapes: see :mod:`.strict_templates`.

        Args:
            messages: dictionaries with ``role`` and, usually, ``content``.
            options: ``add_generation_prompt`` (``True``), ``continue_final_message`` (``False``:
                leave the last message open), ``tools`` and ``documents`` (lists of dictionaries),
                ``chat_template`` (a name or the template itself); the template sees all others.

        Raises:
            RequestError: there is no template, it refuses the messages or makes nothing of them,
                they are malformed, or it does more than any template needs: see
                :mod:`.template_bounds`.
        """
        try:
            environment = _environment((messages, options))
        except TemplateTooCostly as error:
            raise RequestError(f"the messages are too large: {error}; shorten them") from error
        checked = _checked(messages)
        tools = options.pop("tools", None) or None
        source = self._choose(options.pop("chat_template", None), bool(tools))
        go_on = options.pop("continue_final_message", False)
        options.setdefault("add_generation_prompt", not go_on)
        options.setdefault("documents", None)
        if go_on:
            _check_that_it_goes_on(checked, options)
        variables = {**self.special_tokens, **_plain(options), "tools": _plain(tools)}
        with _template_errors():
            template = environment.template(_compiled(source))

            def rendered(messages: list[dict[str, Any]]) -> str:
                messages = [self._shaped(source, each) for each in messages]
                if not go_on:
                    return str(template.render(messages=messages, **variables))
                messages = [*messages[:-1], _with_cut(messages[-1])]
                return _cut(template.render(messages=messages, **variables), messages[-1])

            text = accepted(checked, rendered)
        if not text:
            raise RequestError(
                "the chat template makes an empty prompt of these messages; change the messages, "
                "or pass another template as chat_template"
            )
        return text

    def _shaped(self, source: str, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with a content as the template reads it: a text, or parts."""
        content = message.get("content")
        if not isinstance(content, str | list):
            return message
        parts = self._reads_parts(source, message["role"], given=isinstance(content, list))
        if isinstance(content, list) and not parts:
            return {**message, "content": " ".join(part["text"] for part in content)}
        if isinstance(content, str) and parts:
            return {**message, "content": [{"type": "text", "text": content}]}
        return message

    def _reads_parts(self, source: str, role: str, *, given: bool) -> bool:
        """Return whether the content of a role must be parts; if it is ``given`` so, may be."""
        if len(self._takes_parts) > _MAX_KNOWN:
            self._takes_parts.clear()
        for form in (_SAMPLE_PARTS,) if given else (_SAMPLE, _SAMPLE_PARTS):
            key = (source, f"{role} {form}")
            shows = self._takes_parts.get(key)
            if shows is None:
                shows = self._takes_parts[key] = self._shows(source, role, form)
            if shows:
                return form is _SAMPLE_PARTS
        return False

    def _shows(self, source: str, role: str, content: Any) -> bool:
        """Return whether a message of this role is shown with this content, and as no list."""
        before: list[dict[str, Any]] = [{"role": "user", "content": ""}]
        if role == "tool":
            before.append({"role": "assistant", "content": "", "tool_calls": [_SAMPLE_CALL]})
        said = {"role": role, "content": content, "tool_call_id": _SAMPLE_CALL["id"]}
        messages = [said] if role == "user" else [*before, said]
        if role in ("system", "developer"):
            messages.reverse()
        try:
            template = _environment(messages).template(_compiled(source))
            text = template.render(messages=messages, tools=None, **self.special_tokens)
        except TemplateTooCostly:
            raise
        except Exception:  # noqa: BLE001 - a template is a program, which does not take this
            return False
        return all(part in text for part in _SAMPLE.split()) and not re.search(
            r"""['"]type['"]\s*:""", text
        )

    def _choose(self, wanted: str | None, with_tools: bool) -> str:
        if wanted is not None:
            return self.sources.get(wanted, wanted)
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self.sources:
                return self.sources[name]
        if self.sources:
            raise RequestError(
                "the checkpoint has several chat templates and none called `default`; pass one as "
                f"chat_template: {shown(sorted(self.sources))}"
            )
        raise RequestError(
            "the checkpoint has no chat template (neither chat_template.jinja nor an entry in "
            "tokenizer_config.json or chat_template.json): it was not made for conversations; send "
            "a plain prompt, or pass a template as chat_template"
        )


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(source: str) -> CodeType:
    return _environment(()).compiled(source)


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
        if message.get("role") is None:
            raise RequestError(
                f"a message has no role (user, assistant, system, ...): {shown(message)}"
            )
    return [_named_thoughts(_plain(_with_text_parts(message))) for message in messages]


def _named_thoughts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as ``transformers`` hands it on: without what is null, and with its thoughts
    under each name that templates read."""
    said = {name: value for name, value in message.items() if value is not None}
    for name in _THOUGHTS:
        if name in said:
            return {"thinking": said[name], **said, "reasoning_content": said[name]}
    return said


def _with_text_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [{"type": "text", "text": _text(part)} for part in content]}


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


@contextmanager
def _template_errors() -> Iterator[None]:
    try:
        yield
    except RequestError:
        raise
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


def _check_that_it_goes_on(messages: list[dict[str, Any]], options: Mapping[str, Any]) -> None:
    if options["add_generation_prompt"]:
        raise RequestError(
            "continue_final_message and add_generation_prompt contradict each other; set one"
        )
    content = messages[-1].get("content")
    if not isinstance(content, str) and not (isinstance(content, list) and content):
        raise RequestError("continue_final_message needs a last message whose content is text")


def _with_cut(message: dict[str, Any]) -> dict[str, Any]:
    """Mark the end of a message's content, to cut there what the template adds after it."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _CUT}
    *parts, last = content
    return {**message, "content": [*parts, {**last, "text": last["text"] + _CUT}]}


def _cut(text: str, message: dict[str, Any]) -> str:
    """Return the text up to the mark, by the rule of ``transformers``: without spaces at its end
    if the template trims the message, and so would not have them inside a longer one.
    """
    head, found, rest = text.rpartition(_CUT.rstrip())
    said = message["content"]
    said = said if isinstance(said, str) else said[-1]["text"]
    if not found or said.removesuffix(_CUT).strip() not in text:
        raise RequestError(
            "continue_final_message is set, but the chat template leaves the last message "
            f"({message['role']}) out, or part of it"
        )
    return head if rest.startswith(" ") else head.rstrip()
