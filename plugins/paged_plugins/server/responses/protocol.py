"""Requests and answers of ``/v1/responses``, under OpenAI's names.

A field that is not here is refused by its name. ``null`` is the same as leaving a field out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from paged_plugins.server.openai.protocol import (
    Answered,
    Effort,
    Sampled,
    Sent,
    Some,
    TokenLogprob,
)

Status = Literal["in_progress", "completed", "incomplete"]

# ---------------------------------------------------------------------- requests


class Part(Sent):
    """A part of a message; only text is served."""

    type: Literal["input_text", "output_text", "refusal", "summary_text", "reasoning_text"]
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    """Without effect: clients send back what they got."""
    logprobs: list[Any] | None = None
    """Without effect."""


class InputItem(Sent):
    """A message, a call, what a call gave, or thoughts."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    """Without effect: items are sent whole."""
    status: str | None = None
    """Without effect."""

    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    """Content of a message or of thoughts."""
    phase: Literal["commentary", "final_answer"] | None = None
    """Without effect."""
    summary: list[Part] | None = None
    """Summary of thoughts, where their own text is not sent."""
    encrypted_content: None = None

    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    """Result of a call."""


class TextOptions(Sent):
    """Options of the text of the answer."""

    format: dict[str, Any] | None = None
    """``text``, ``json_object`` or ``json_schema``."""
    verbosity: Literal["medium"] | None = None
    """No model is told to be short, or long."""


class ReasoningOptions(Sent):
    """Options of thoughts."""

    effort: Effort | None = None
    """Told to the chat template as ``reasoning_effort``; none: ``enable_thinking`` is false."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Without effect: the thoughts themselves are given."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """Without effect."""


class ResponsesStreamOptions(Sent):
    """Options of a stream."""

    include_obfuscation: Literal[False] | None = None
    """Events are never padded."""


class ResponsesRequest(Sampled, kw_only=True):
    """``POST /v1/responses``."""

    input: str | list[InputItem]
    instructions: str | None = None
    """Message of the system, before everything else."""
    max_output_tokens: int | None = None
    stop: str | Annotated[list[str], Some] | None = None
    stream_options: ResponsesStreamOptions | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further options of the chat template, such as ``enable_thinking``."""
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    """Without effect: it bounds calls that a server makes, and this one makes none."""
    user: str | None = None
    """Whose it is, for queue orders that are fair to users."""

    store: bool | None = None
    """Without effect: nothing is ever stored, and the answer says so."""
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    """An input that is too long is refused, never cut."""
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None
    )
    """The second one is without effect: thoughts are given as they are."""
    top_logprobs: int | None = None
    """Number of best tokens that ``message.output_text.logprobs`` have for each token."""
    metadata: dict[str, str] | None = None
    """Repeated in the answer."""
    service_tier: Literal["auto", "default"] | None = None
    """Without effect: there is one."""
    safety_identifier: str | None = None
    """Without effect."""
    prompt_cache_retention: str | None = None
    """Without effect."""

    previous_response_id: None = None
    """Nothing is stored: send what was said before as input."""
    conversation: None = None
    prompt: None = None


class InputTokensRequest(Sent, kw_only=True):
    """``POST /v1/responses/input_tokens``: what of a request for a response makes its prompt."""

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    previous_response_id: None = None
    conversation: None = None


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


class OutputCall(Answered, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


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
