"""Requests and answers of ``/v1/messages``, under Anthropic's names.

A field that is not here is refused by its name. ``null`` is the same as leaving a field out. What
is of the type ``NoEffect`` is not read.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET

from paged_plugins.server.errors import TOO_LONG, ApiError
from paged_plugins.server.openai.protocol import Answered, NoEffect, Sampled, Sent, Some

# ---------------------------------------------------------------------- requests


class SentBlock(Sent):
    """A part of a message; only text is served."""

    cache_control: NoEffect = UNSET
    """Prefixes are found by their content."""


class SentText(SentBlock, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: NoEffect = UNSET


class DocumentSource(Sent):
    """Text of a document, or its parts."""

    type: Literal["text", "content"]
    media_type: Literal["text/plain"] | None = None
    data: str | None = None
    content: str | list[SentText] | None = None


class SentDocument(SentBlock, kw_only=True, tag_field="type", tag="document"):
    """A document, which the model reads as text after its title and context."""

    source: DocumentSource
    title: str | None = None
    context: str | None = None
    citations: NoEffect = UNSET


class SentSearchResult(SentBlock, kw_only=True, tag_field="type", tag="search_result"):
    """Result of a search, which the model reads as text after its title and source."""

    title: str
    source: str
    content: list[SentText]
    citations: NoEffect = UNSET


AnyText = SentText | SentDocument | SentSearchResult


class SentThinking(SentBlock, kw_only=True, tag_field="type", tag="thinking"):
    """Reasoning content of an earlier answer."""

    thinking: str
    signature: NoEffect = UNSET
    """Thoughts are not signed."""


class SentRedacted(SentBlock, kw_only=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning content that only another server can read; it is left out."""

    data: NoEffect = UNSET


class SentToolUse(SentBlock, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    caller: NoEffect = UNSET
    toolset_name: NoEffect = UNSET


class ToolReference(SentBlock, kw_only=True, tag_field="type", tag="tool_reference"):
    """A tool that a search has found: from now on it is there, even if its loading is deferred."""

    tool_name: str


class SentToolResult(SentBlock, kw_only=True, tag_field="type", tag="tool_result"):
    """Result of a call."""

    tool_use_id: str
    content: str | list[AnyText | ToolReference] | None = None
    is_error: bool | None = None
    """The model is told by ``Error:`` before the text."""
    toolset_name: NoEffect = UNSET


class ToolChange(Sent):
    """The tool that is added or removed: by its name, or as a list of tools has it."""

    type: Literal["tool_reference", "tool_definition"]
    name: str | None = None
    definition: dict[str, Any] | None = None


class ToolAddition(SentBlock, kw_only=True, tag_field="type", tag="tool_addition"):
    """A tool is there from now on."""

    tool: ToolChange


class ToolRemoval(SentBlock, kw_only=True, tag_field="type", tag="tool_removal"):
    """A tool is there no more."""

    tool: ToolChange


class RanElsewhere(msgspec.Struct):
    """A call that another server has made, what came of it, or a summary of what went before."""

    name: str | None = None
    input: Any = None
    content: Any = None


RAN_ELSEWHERE = (
    "server_tool_use",
    *("web_search_tool_result", "web_fetch_tool_result", "tool_search_tool_result"),
    *("code_execution_tool_result", "bash_code_execution_tool_result"),
    *("text_editor_code_execution_tool_result", "advisor_tool_result", "container_upload"),
    *("mcp_tool_use", "mcp_tool_result", "mcp_tool_listing", "compaction", "fallback"),
)
if TYPE_CHECKING:
    AnyRanElsewhere = RanElsewhere
else:
    AnyRanElsewhere = reduce(
        or_,
        (
            msgspec.defstruct(tag.title(), (), bases=(RanElsewhere,), tag_field="type", tag=tag)
            for tag in RAN_ELSEWHERE
        ),
    )

AnyBlock = (
    AnyText
    | SentThinking
    | SentRedacted
    | SentToolUse
    | SentToolResult
    | ToolAddition
    | ToolRemoval
    | AnyRanElsewhere
)


class SentMessage(Sent):
    """A message of a conversation; the assistant's, if it is the last one, is continued."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnyBlock] | None = None
    clear_at: Literal["next_user_message", "never"] | None = None
    """Until when a message of the system is shown."""
    output_config: NoEffect = UNSET
    """Effort is that of the request."""


class Tool(Sent):
    """A function that may be called."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    defer_loading: bool | None = None
    """Not there before a ``tool_reference`` or ``tool_addition`` names it."""
    strict: NoEffect = UNSET
    """The schema is forced whenever a call is."""
    cache_control: NoEffect = UNSET
    eager_input_streaming: NoEffect = UNSET
    """Arguments are always sent as they are generated."""
    allowed_callers: NoEffect = UNSET
    input_examples: NoEffect = UNSET


class ToolChoice(Sent):
    """Choice of a tool: none, any, or this one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Sent):
    """Thinking on or off, told to the chat template as ``enable_thinking``."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    """With the last two the template decides."""
    budget_tokens: NoEffect = UNSET
    """``max_tokens`` bounds thoughts, too."""
    display: NoEffect = UNSET
    """Thoughts are always shown, and whole."""
    block_binding: NoEffect = UNSET


class Metadata(Sent):
    """Whose a request is."""

    user_id: str | None = None
    """For queue orders that are fair to users."""


class OutputFormat(Sent):
    """A JSON schema that the text must have."""

    type: Literal["json_schema"]
    schema: dict[str, Any]
    name: NoEffect = UNSET
    strict: NoEffect = UNSET


class OutputConfig(Sent):
    """Form of the answer, and the effort that it may take."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    """Told to the chat template as ``reasoning_effort``."""
    task_budget: NoEffect = UNSET


class MessagesRequest(Sampled, kw_only=True):
    """``POST /v1/messages``."""

    messages: list[SentMessage]
    max_tokens: int
    system: str | list[SentText] | None = None
    tools: list[dict[str, Any]] | None = None
    """Each a :class:`Tool`, or a tool that a server runs: these are skipped."""
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older name of ``output_config.format``."""
    stop_sequences: Annotated[list[str], Some] | None = None
    metadata: Metadata | None = None
    thread: dict[str, Any] | None = None
    """Refused, in the form in which clients then send the whole conversation."""
    mcp_servers: list[dict[str, Any]] | None = None
    """Skipped, as tools that a server runs."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further options of the chat template."""

    cache_control: NoEffect = UNSET
    context_management: NoEffect = UNSET
    """Conversations are taken as they are sent."""
    speed: NoEffect = UNSET
    service_tier: NoEffect = UNSET
    inference_geo: NoEffect = UNSET
    diagnostics: NoEffect = UNSET
    fallbacks: NoEffect = UNSET
    """No model here declines to answer."""
    fallback_credit_token: NoEffect = UNSET
    billing_policy: NoEffect = UNSET
    user_profile_id: NoEffect = UNSET
    workspace_id: NoEffect = UNSET
    betas: NoEffect = UNSET
    anthropic_beta: NoEffect = UNSET
    anthropic_version: NoEffect = UNSET


class CountTokensRequest(MessagesRequest, kw_only=True):
    """``POST /v1/messages/count_tokens``: what does not make the prompt has no effect."""

    max_tokens: int | None = None  # type: ignore[assignment]


# ---------------------------------------------------------------------- answers


class TextBlock(Answered, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlock(Answered, tag_field="type", tag="thinking"):
    """Reasoning content."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Answered, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: Any
    """Arguments; those of a call that was cut, as far as they came."""


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(Answered):
    """Details of the tokens of the answer."""

    thinking_tokens: int
    """Tokens of reasoning content, about."""


class MessagesUsage(Answered, omit_defaults=True):
    """Token counts of a request."""

    input_tokens: int
    """Prompt tokens, without those that the cache served."""
    cache_read_input_tokens: int
    """Prompt tokens that the cache served."""
    cache_creation_input_tokens: Literal[0]
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class Message(Answered):
    """The answer of ``/v1/messages``."""

    id: str
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(Answered):
    """The answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


NO_THREADS = "thread_unsupported_request"


class AnthropicErrorBody(Answered, omit_defaults=True):
    """Description of an error."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
        "timeout_error",
    ]
    message: str
    details: dict[str, Any] | None = None
    """For programs that know how to go on."""


_TYPES: dict[int, Any] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicError(Answered):
    """The body of every answer that is an error, and of the event that ends a stream with one."""

    error: AnthropicErrorBody
    type: Literal["error"] = "error"
    asked_by: ClassVar[bytes] = b"anthropic-version"
    id_header: ClassVar[bytes] = b"request-id"

    @classmethod
    def of(cls, error: ApiError) -> AnthropicError:
        """Return what is answered for an error."""
        kind = "api_error" if error.status >= 500 else "invalid_request_error"
        message = error.answer.error.message
        if error.answer.error.code == TOO_LONG:  # in the words by which clients know it
            most, length = re.findall(r"\d+", message)[:2]
            about = "about " if "about" in message else ""
            message = f"prompt is too long: {about}{length} tokens > {most} maximum"
        body = AnthropicErrorBody(type=_TYPES.get(error.status, kind), message=message)
        if error.code == NO_THREADS:
            body.details = {"error_code": NO_THREADS, "unsupported": ["thread"]}
        return cls(error=body)


# ---------------------------------------------------------------------- events


class MessageStart(Answered, tag_field="type", tag="message_start"):
    """Begin of a message; the content is still empty."""

    message: Message


class BlockStart(Answered, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextDelta(Answered, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Answered, tag_field="type", tag="thinking_delta"):
    """More thoughts."""

    thinking: str


class InputDelta(Answered, tag_field="type", tag="input_json_delta"):
    """More of the JSON of a tool's input."""

    partial_json: str


class BlockDelta(Answered, tag_field="type", tag="content_block_delta"):
    """A block has grown."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Answered, tag_field="type", tag="content_block_stop"):
    """A block has ended."""

    index: int


class Ending(Answered):
    """Why the message has ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Answered, tag_field="type", tag="message_delta"):
    """The message has ended."""

    delta: Ending
    usage: MessagesUsage


class MessageStop(Answered, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Answered, tag_field="type", tag="ping"):
    """Nothing has happened for a while."""


AnyEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
