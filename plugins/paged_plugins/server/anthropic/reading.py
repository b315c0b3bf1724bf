"""Requests for messages, translated onto chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from paged_plugins.server.anthropic.protocol import (
    NO_THREADS,
    CountTokensRequest,
    MessagesRequest,
    RanElsewhere,
    SentDocument,
    SentMessage,
    SentRedacted,
    SentSearchResult,
    SentText,
    SentThinking,
    SentToolResult,
    SentToolUse,
    Tool,
    ToolAddition,
    ToolChange,
    ToolChoice,
    ToolReference,
    ToolRemoval,
)
from paged_plugins.server.errors import ApiError, refused
from paged_plugins.server.http.endpoint import check_depth, skipped
from paged_plugins.server.openai.protocol import ChatRequest, Sampled, TokenizeRequest, read_again
from paged_plugins.server.translation.conversation import Conversation, joined

_BILLING_LINE = re.compile(r"^x-anthropic-billing-header:.*\n?", re.MULTILINE)
"""Line that is another one in every request of a conversation."""
_RUN_ELSEWHERE = re.compile(r"\w+_\d{8}|mcp_toolset")
"""Types of tools that another server runs, or that only its models know."""
_NOT_READ = re.compile(
    r"(\w+_)?type|citations|cache_control|stop_reason|\w+_id|encrypted_\w+|signature"
)
"""Keys of what a server's tool was given, and gave, that say nothing to a model."""


class Reading:
    """Request for a message, as a chat.

    Args:
        strips_billing_line: leave out a line of the system prompt that would empty the prefix
            cache.

    Raises:
        ApiError: a block or a tool is not what it should be.
    """

    def __init__(self, body: MessagesRequest, *, strips_billing_line: bool) -> None:
        self._body, self._strips = body, strips_billing_line
        if body.thread:
            reason = "thread: nothing is stored; leave it out, and send the whole conversation"
            raise ApiError(400, reason, param="thread", code=NO_THREADS)
        self._tools = _Tools(body.tools or ())
        self._made = Conversation()
        self._skipped: dict[str, None] = {}
        if body.system and (system := self._system(body.system)):
            self._made.say("system", system)
        last = max((n for n, each in enumerate(body.messages) if each.role == "user"), default=-1)
        for place, message in enumerate(body.messages):
            if message.clear_at != "next_user_message" or place > last:
                self._add(message, f"messages.{place}")

    @property
    def warnings(self) -> Iterator[str]:
        """Parts of it that are not served, though the rest is."""
        servers = [f"mcp_servers: {each.get('name')}" for each in self._body.mcp_servers or ()]
        return skipped([*self._tools.skipped, *servers], self._skipped)

    def chat(self) -> ChatRequest:
        """Return what is asked of the model.

        Raises:
            ApiError: a choice of tools is not what it should be.
        """
        body, choice = self._body, self._body.tool_choice
        schema = (body.output_config and body.output_config.format) or body.output_format
        return ChatRequest(
            **{name: getattr(body, name) for name in Sampled.__struct_fields__},
            **self._prompt(),
            max_completion_tokens=body.max_tokens,
            stop=body.stop_sequences,
            user=body.metadata.user_id if body.metadata else None,
            response_format=(
                {"type": "json_schema", "json_schema": {"schema": schema.schema}}
                if schema
                else None
            ),
            tool_choice=_tool_choice(choice),
            parallel_tool_calls=(
                False if choice is not None and choice.disable_parallel_tool_use else None
            ),
        )

    def tokenized(self) -> TokenizeRequest:
        """Return what is to be tokenised."""
        return TokenizeRequest(model=self._body.model, **self._prompt())

    def _prompt(self) -> dict[str, Any]:
        """Return the fields that make the prompt."""
        messages = self._made.said(self._skipped)
        last = messages[-1] if messages else None
        continues = (
            last is not None and last.role == "assistant" and last.content and not last.tool_calls
        )
        return {
            "messages": messages if self._body.messages else [],
            "tools": self._tools.functions() or None,
            "continue_final_message": True if continues else None,
            "chat_template_kwargs": _template_options(self._body),
        }

    def _system(self, content: str | Sequence[SentText]) -> str:
        if not self._strips:
            return _text(content)
        texts = [content] if isinstance(content, str) else [block.text for block in content]
        stripped = [_BILLING_LINE.sub("", text) for text in texts]
        return joined(new for new, old in zip(stripped, texts, strict=True) if new or not old)

    def _add(self, message: SentMessage, path: str) -> None:
        content = message.content or ""
        if isinstance(content, str):
            if content or message.role != "system":
                self._made.say(message.role, content)
            return
        place = 0
        for kind, group in groupby(map(_readable, content), type):
            blocks: Sequence[Any] = list(group)
            where = f"{path}.content.{place}"
            place += len(blocks)
            if kind is SentText:
                self._made.say(message.role, _text(blocks))
                continue
            needed = _ROLES.get(kind)
            if needed is not None and message.role not in needed:
                name, of = blocks[0].__struct_config__.tag, needed[0]
                raise refused(where, f"{where}: a {name} block is for messages of the {of}")
            for each in blocks:
                self._add_block(each, where)

    def _add_block(self, block: Any, where: str) -> None:
        if isinstance(block, RanElsewhere):
            self._skipped[str(block.__struct_config__.tag)] = None
        elif isinstance(block, SentThinking):
            self._made.think(block.thinking)
        elif isinstance(block, SentToolUse):
            check_depth(where, block.input)
            self._made.call(block.id, block.name, msgspec.json.encode(block.input).decode())
        elif isinstance(block, SentToolResult):
            self._made.give_result(block.tool_use_id, self._result(block))
        elif isinstance(block, ToolAddition):
            self._tools.add(block.tool, f"{where}.tool.definition")
        elif isinstance(block, ToolRemoval):
            self._tools.remove(block.tool.name)

    def _result(self, block: SentToolResult) -> str:
        content = block.content or ""
        if not isinstance(content, str):
            found = [each for each in content if isinstance(each, ToolReference)]
            for each in found:
                self._tools.load(each.tool_name)
            content = joined(
                each.tool_name if isinstance(each, ToolReference) else _readable(each).text
                for each in content
            )
        return f"Error: {content}" if block.is_error else content


_ROLES: Mapping[Any, tuple[str, ...]] = {
    SentThinking: ("assistant",),
    SentRedacted: ("assistant",),
    SentToolUse: ("assistant",),
    SentToolResult: ("user",),
    ToolAddition: ("system", "user"),
    ToolRemoval: ("system", "user"),
}
"""By kind of block: whose messages may have it."""


class _Tools:
    """Tools that the model may call, at the end of a conversation."""

    def __init__(self, given: Sequence[Mapping[str, Any]]) -> None:
        self.skipped: list[str] = []
        self._loaded: set[str] = set()
        self._removed: set[str] = set()
        found = [self._read(each, f"tools.{place}") for place, each in enumerate(given)]
        self._tools = [each for each in found if each is not None]
        self._are_all_loaded = any(name.startswith("tool_search") for name in self.skipped)
        """True where nothing can search for those whose loading is deferred."""

    def _read(self, given: Mapping[str, Any], path: str) -> Tool | None:
        kind = given.get("type")
        if isinstance(kind, str) and _RUN_ELSEWHERE.fullmatch(kind):
            self.skipped.append(kind)
            return None
        check_depth("tools", given)
        if kind == "function":
            message = f"{path}.type: give the name, description and input_schema, and no type"
            raise refused(f"{path}.type", message)
        return read_again(given, Tool, path)

    def add(self, change: ToolChange, path: str) -> None:
        """Make a tool one that is there."""
        name = change.name
        if change.definition is not None:
            tool = self._read(change.definition, path)
            if tool is None:
                return
            name = tool.name
            self._tools = [each for each in self._tools if each.name != name] + [tool]
        if name is not None:
            self._removed.discard(name)
            self.load(name)

    def load(self, name: str) -> None:
        """Make a tool, whose loading may be deferred, one that the model sees."""
        self._loaded.add(name)

    def remove(self, name: str | None) -> None:
        """Make a tool one that is not there."""
        self._removed.add(name or "")

    def functions(self) -> list[dict[str, Any]]:
        """Return those that the model sees, as chats have them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    **({"description": tool.description} if tool.description is not None else {}),
                    "parameters": tool.input_schema,
                },
            }
            for tool in self._tools
            if tool.name not in self._removed
            and (not tool.defer_loading or self._are_all_loaded or tool.name in self._loaded)
        ]


def _text(content: str | Sequence[SentText]) -> str:
    return content if isinstance(content, str) else joined(block.text for block in content)


def _readable(block: Any) -> Any:
    """Return a block that has a text as one of text, and others as they are."""
    if isinstance(block, SentSearchResult):
        texts: list[str | None] = [block.title, block.source, _text(block.content)]
    elif isinstance(block, SentDocument):
        source = block.source
        texts = [block.title, block.context, source.data or _text(source.content or "")]
    elif isinstance(block, RanElsewhere):
        check_depth("messages", [block.input, block.content])
        texts = [block.name, *_texts([block.input, block.content])]
    else:
        return block
    given = list(filter(None, texts))
    is_skipped = not given and isinstance(block, RanElsewhere)
    return block if is_skipped else SentText(text=joined(given))


def _texts(given: Any) -> Iterator[str]:
    """Yield what can be read in a value, in its order."""
    if isinstance(given, str | int | float) and not isinstance(given, bool):
        yield str(given)
    elif isinstance(given, Mapping) and given.get("type") != "base64":
        for key, value in given.items():
            if not _NOT_READ.fullmatch(key):
                yield from _texts(value)
    elif isinstance(given, list):
        for each in given:
            yield from _texts(each)


def _template_options(body: MessagesRequest | CountTokensRequest) -> dict[str, Any] | None:
    """Return what the chat template is told; the client's own words come first."""
    own: dict[str, Any] = {}
    if body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        own["enable_thinking"] = body.thinking.type == "enabled"
    if body.output_config is not None and body.output_config.effort is not None:
        own["reasoning_effort"] = body.output_config.effort
    return own | (body.chat_template_kwargs or {}) or None


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if (choice.name is None) == (choice.type == "tool"):
        raise refused("tool_choice.name", "tool_choice.name is for the type tool, and needed there")
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"any": "required"}.get(choice.type, choice.type)
