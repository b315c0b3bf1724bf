"""Requests and answers of ``/v1/responses``, under OpenAI's names.

A field that is not here is refused by its name. ``null`` is the same as leaving a field out. What
is of the type ``NoEffect`` is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from paged_plugins.server.openai.protocol import (
    Answered,
    Effort,
    NoEffect,
    OpenAIRequest,
    Sent,
    SentBack,
    StreamOptions,
    TokenLogprob,
)

Status = Literal["in_progress", "completed", "incomplete"]

# ---------------------------------------------------------------------- requests


class Part(SentBack, kw_only=True):
    """A part of a message; only text is served."""

    type: Literal["input_text", "output_text", "refusal", "summary_text", "reasoning_text", "text"]
    text: str | None = None
    refusal: str | None = None
    annotations: NoEffect = UNSET
    logprobs: NoEffect = UNSET


Calls = Literal[
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "tool_search_call",
]
Results = Literal[
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "tool_search_output",
]
Skipped = Literal[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "computer_call",
    "computer_call_output",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "program",
    "program_output",
    "compaction",
    "compaction_trigger",
    "configuration_update",
]
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.results",
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]


class InputItem(msgspec.Struct, kw_only=True):
    """A message, a call, what a call gave, thoughts, or tools.

    Keys that are not here, such as ``id`` and ``status``, are not read: clients send items back
    with whatever they keep in them.
    """

    type: Literal[
        "message", "agent_message", "reasoning", "additional_tools", Calls, Results, Skipped
    ] = "message"

    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    """Content of a message or of thoughts."""
    summary: list[Part] | None = None
    """Summary of thoughts, where their own text is not sent."""

    call_id: str | None = None
    id: str | None = None
    """In place of ``call_id`` where an item has none."""
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    """JSON of a function's arguments; of a search, the arguments themselves."""
    input: str | None = None
    """Text that a custom tool was given."""
    action: Any = None
    operation: Any = None
    output: Any = None
    """Result of a call: text, parts, or what a shell printed."""
    tools: list[dict[str, Any]] | None = None
    """Further tools, which were added or found."""


class TextOptions(Sent):
    """Options of the text of the answer."""

    format: dict[str, Any] | None = None
    """``text``, ``json_object`` or ``json_schema``."""
    verbosity: NoEffect = UNSET


class ReasoningOptions(Sent):
    """Options of thoughts."""

    effort: Effort | None = None
    """Told to the chat template as ``reasoning_effort``; none: ``enable_thinking`` is false."""
    summary: NoEffect = UNSET
    """The thoughts themselves are given."""
    generate_summary: NoEffect = UNSET
    context: NoEffect = UNSET
    mode: NoEffect = UNSET


class ResponsesRequest(OpenAIRequest, kw_only=True):
    """``POST /v1/responses``."""

    input: str | list[InputItem]
    instructions: str | None = None
    """Message of the system, before everything else."""
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further options of the chat template, such as ``enable_thinking``."""
    tools: list[dict[str, Any]] | None = None
    """Functions, namespaces of them, and tools that a server runs: these are skipped."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[Included] | None = None
    """``message.output_text.logprobs``; others are without effect."""
    top_logprobs: int | None = None
    """Number of best tokens that log-probabilities have for each token; more than 0: they are
    included."""
    metadata: dict[str, str] | None = None
    """Repeated in the answer."""
    stream_options: StreamOptions | None = None

    background: Literal[False] | None = None
    previous_response_id: None = None
    """Nothing is stored: send what was said before as input."""
    conversation: None = None
    prompt: None = None

    truncation: NoEffect = UNSET
    """An input that is too long is refused, never cut."""
    max_tool_calls: NoEffect = UNSET
    """A bound of calls that a server makes, and this one makes none."""
    client_metadata: NoEffect = UNSET
    context_management: NoEffect = UNSET
    access_programs: NoEffect = UNSET
    background_options: NoEffect = UNSET
    image: NoEffect = UNSET


class InputTokensRequest(ResponsesRequest, kw_only=True):
    """``POST /v1/responses/input_tokens``: what does not make the prompt has no effect."""


# ---------------------------------------------------------------------- answers


class OutputText(Answered, tag_field="type", tag="output_text"):
    """Text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningText(Answered, tag_field="type", tag="reasoning_text"):
    """Text of thoughts."""

    text: str


class OutputMessage(Answered, tag_field="type", tag="message"):
    """Message of the assistant."""

    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputReasoning(Answered, tag_field="type", tag="reasoning"):
    """Reasoning content."""

    id: str
    status: Status
    content: list[ReasoningText]
    summary: tuple[()] = ()


class OutputCall(Answered, tag_field="type", tag="function_call", omit_defaults=True):
    """A call of a function."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    """Namespace that the function was given in."""


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(Answered):
    """Details of the tokens of the input."""

    cached_tokens: int
    """Served by the cache."""
    cache_write_tokens: int = 0


class OutputTokensDetails(Answered):
    """Details of the tokens of the output."""

    reasoning_tokens: int
    """Tokens of reasoning content, about."""


class ResponsesUsage(Answered):
    """Token counts of a request."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Answered):
    """Why the output is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseError(Answered):
    """Description of an error."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class InputTokens(Answered):
    """Number of tokens of an input."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Response(Answered):
    """The answer of ``/v1/responses``, as far as it is there."""

    id: str
    created_at: int
    model: str
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    user: str | None
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    output: list[OutputItem] = msgspec.field(default_factory=list)
    usage: ResponsesUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: ResponseError | None = None
    object: Literal["response"] = "response"
    background: Literal[False] = False
    previous_response_id: None = None
    service_tier: Literal["default"] = "default"
    store: Literal[False] = False
    top_logprobs: int = 0
    truncation: Literal["disabled"] = "disabled"


# ---------------------------------------------------------------------- events


class Event(Answered, tag_field="type"):
    """Event of a stream."""

    sequence_number: int


class Created(Event, tag="response.created"):
    """First event: the response runs."""

    response: Response


class InProgress(Created, tag="response.in_progress"):
    """Second event: the response goes on."""


class Completed(Created, tag="response.completed"):
    """The last event: the output is whole."""


class Incomplete(Created, tag="response.incomplete"):
    """The last event: the output has reached its bound."""


class Failed(Created, tag="response.failed"):
    """The last event: something went wrong."""


class ItemEvent(Event):
    """Event of an item of the output."""

    output_index: int


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class ItemDone(ItemAdded, tag="response.output_item.done"):
    """End of an item."""


class PartEvent(ItemEvent):
    """Event of a part of an item, which is named by its id."""

    item_id: str


class PartAdded(PartEvent, tag="response.content_part.added"):
    """The part of an item begins."""

    part: OutputText | ReasoningText
    content_index: Literal[0] = 0


class PartDone(PartAdded, tag="response.content_part.done"):
    """End of a part."""


class TextDelta(PartEvent, tag="response.output_text.delta"):
    """Text of a message has grown."""

    delta: str
    content_index: Literal[0] = 0
    logprobs: Sequence[TokenLogprob] = ()


class TextDone(PartEvent, tag="response.output_text.done"):
    """End of the text of a message."""

    text: str
    content_index: Literal[0] = 0
    logprobs: Sequence[TokenLogprob] = ()


class ReasoningDelta(PartEvent, tag="response.reasoning_text.delta"):
    """Text of thoughts has grown."""

    delta: str
    content_index: Literal[0] = 0


class ReasoningDone(PartEvent, tag="response.reasoning_text.done"):
    """End of the text of thoughts."""

    text: str
    content_index: Literal[0] = 0


class ArgumentsDelta(PartEvent, tag="response.function_call_arguments.delta"):
    """The arguments of a call have grown."""

    delta: str


class ArgumentsDone(PartEvent, tag="response.function_call_arguments.done"):
    """End of the arguments of a call."""

    arguments: str


AnyEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
