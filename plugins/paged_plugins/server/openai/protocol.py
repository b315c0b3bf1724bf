"""Requests and answers: OpenAI's fields, and vLLM's extras under vLLM's names.

A field that is not here is refused by its name. ``null`` is the same as leaving a field out. Fields
of the type ``NoEffect`` are taken, whatever they are, and not read: clients send them, and the
answer is the same. ``docs/serving.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from paged_plugins.server.errors import invalid, refused

Some = msgspec.Meta(max_length=64)
_Many = msgspec.Meta(max_length=4096)
"""Bound of lists that are looked at for each token."""
_Word = Annotated[str, msgspec.Meta(max_length=1024)]
_Kind = TypeVar("_Kind")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Effort that a model is to spend on thinking."""
NoEffect = msgspec.Raw | UnsetType
"""Type of fields without effect; nothing is made of what they hold."""


class Sent(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A part of a request."""


def read_again(given: Any, kind: type[_Kind], path: str) -> _Kind:
    """Return an object of a request as a part; ``msgspec.convert`` takes no field without effect.

    Raises:
        ApiError: it is no such part.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(given), type=kind)
    except msgspec.ValidationError as error:
        raise invalid(error, kind, path) from None


def check_refusals(role: str, parts: Iterable[Any], path: str) -> None:
    """Refuse the parts of a message that only the assistant says.

    Raises:
        ApiError: a message of another has one.
    """
    if role != "assistant" and any(part.type == "refusal" for part in parts):
        message = f"{path}.content: a refusal part is for messages of the assistant"
        raise refused(f"{path}.content", message)


class StreamOptions(Sent):
    """Options of a stream."""

    include_obfuscation: NoEffect = UNSET
    """Chunks and events are never padded."""


class UsageOptions(StreamOptions):
    """Options of a stream of chunks."""

    include_usage: bool | None = None
    """Say at the end how many tokens there were."""
    continuous_usage_stats: bool | None = None
    """Say it in every chunk, too; without effect where it is not said at the end."""


class Sampled(Sent, kw_only=True):
    """Fields of all requests that generate, whatever their API."""

    model: str | None = None
    """One of the served names; the first, if there is none."""
    stream: bool | None = None

    temperature: float | None = None
    """1 if there is none; 0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], _Many] | None = None
    seed: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: Annotated[list[_Word], Some] | None = None
    stop_token_ids: Annotated[list[int], _Many] | None = None
    include_stop_str_in_output: bool | None = None
    stop_in_reasoning: bool | None = None
    """Stop strings count in reasoning content, too."""
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    """Where tokens are left out: right keeps the first ones."""
    add_special_tokens: bool | None = None
    """Put the tokenizer's special tokens around a text; a chat template has its own."""
    structured_outputs: dict[str, Any] | None = None

    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    """End of the answer's id, after its kind: ``cmpl-``, ``chatcmpl-`` and so on."""
    prompt_cache_key: str | None = None
    """The conversation that it belongs to, for routers of several engines. The header
    ``X-Session-Id`` says the same."""
    deadline: float | None = None
    """Seconds after which it ends with the error 504."""


class OpenAIRequest(Sampled, kw_only=True):
    """Fields of all of OpenAI's requests."""

    stop: str | Annotated[list[str], Some] | None = None
    user: str | None = None
    """Whose it is, for queue orders that are fair to users."""

    store: NoEffect = UNSET
    """Nothing is ever stored."""
    service_tier: NoEffect = UNSET
    safety_identifier: NoEffect = UNSET
    prompt_cache_options: NoEffect = UNSET
    """Prefixes are found by their content."""
    prompt_cache_retention: NoEffect = UNSET


class Generated(OpenAIRequest, kw_only=True):
    """Fields of completions and chats."""

    stream_options: UsageOptions | None = None

    n: int | None = None
    max_tokens: int | None = None
    best_of: int | None = None
    beam_width: int | None = None
    use_beam_search: bool | None = None
    """With ``n`` beams, all of which are returned."""
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    prompt_logprobs: int | None = None
    response_format: dict[str, Any] | None = None

    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """In log-probabilities, write tokens as ``token_id:17``."""

    metadata: NoEffect = UNSET
    prediction: NoEffect = UNSET
    """A hint that would make the same answer faster."""
    verbosity: NoEffect = UNSET
    """No model is told to be short, or long."""


class CompletionRequest(Generated, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[Any]
    """Text, token ids, or a list of either."""
    echo: bool | None = None
    """Begin with the prompt."""
    logprobs: int | None = None
    """Show the log-probability of each token, and of so many best ones."""
    suffix: Literal[""] | None = None
    """Filling in between two texts is not served."""


class SentBack(Sent):
    """A part of a conversation, with what clients and routers add to it."""

    cache_control: NoEffect = UNSET
    prompt_cache_breakpoint: NoEffect = UNSET
    provider_specific_fields: NoEffect = UNSET
    extra_content: NoEffect = UNSET


class FunctionCall(Sent):
    """A function that the model has called."""

    name: str
    arguments: str
    """JSON."""
    parsed_arguments: NoEffect = UNSET


class CustomCall(Sent):
    """A custom tool that the model has called."""

    name: str
    input: str


class ToolCall(SentBack, kw_only=True):
    """A call in a message of the assistant."""

    id: str
    function: FunctionCall | None = None
    custom: CustomCall | None = None
    type: Literal["function", "custom"] = "function"
    index: int | None = None


class TextPart(SentBack, kw_only=True):
    """A part of a message; only text is served."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class Message(SentBack, kw_only=True):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """``developer`` is ``system``."""
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: NoEffect = UNSET
    reasoning_details: NoEffect = UNSET
    thinking_blocks: NoEffect = UNSET
    parsed: NoEffect = UNSET
    audio: None = None
    function_call: FunctionCall | None = None
    """The call of one of ``functions``; a message of the role ``function`` has its result."""


class ChatRequest(Generated, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    """The newer name of ``max_tokens``."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[Literal["text"]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    """Begin with the last message, if it is the assistant's."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further options of the chat template, such as ``enable_thinking``."""
    documents: list[dict[str, Any]] | None = None
    """Told to the chat template under this name: what the answer is to be based on."""
    reasoning_effort: Effort | None = None
    """Told to the chat template under this name; none: ``enable_thinking`` is false."""
    enable_thinking: bool | None = None
    """Told to the chat template under this name."""
    thinking: bool | dict[str, Any] | None = None
    """The same, or its ``type`` as enabled or disabled; told under both names."""
    include_reasoning: bool | None = None
    """False: thoughts are not shown."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    """The older form of ``tools``: an answer has one call at most, as ``function_call``."""
    function_call: str | dict[str, Any] | None = None
    """The older form of ``tool_choice``."""
    web_search_options: dict[str, Any] | None = None
    """Skipped, as custom tools are: nothing here searches."""


class TokenizeRequest(Sent):
    """``POST /tokenize``: of a text, or of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking: bool | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeRequest(Sent):
    """``POST /detokenize``."""

    tokens: Annotated[list[int], msgspec.Meta(max_length=1 << 20)]
    model: str | None = None


# ---------------------------------------------------------------------- answers


class Answered(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of an answer."""


class PromptTokensDetails(Answered):
    """Details of the tokens of prompts."""

    cached_tokens: int
    """Served by the cache."""


class Usage(Answered):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(Answered):
    """Per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Answered):
    """Log-probability of one token of a prompt."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class CompletionChoice(Answered, omit_defaults=True):
    """One sequence, or what it gained."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None = None
    """vLLM's extras are left out where they have no value; what OpenAI has as null is null."""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(Answered, omit_defaults=True):
    """The answer of ``/v1/completions``, and each chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(Answered):
    """Log-probability of a token that might have been."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """Log-probability of a token, and of the best ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answered):
    """Per token."""

    content: list[TokenLogprob]


class CalledFunction(Answered, omit_defaults=True):
    """A function, or what the text of its arguments gained."""

    name: str | None = None
    arguments: str | None = None


class MadeToolCall(Answered, omit_defaults=True):
    """A call of a tool, or what it gained."""

    function: CalledFunction
    index: int | None = None
    """In a stream: which of the calls gained it."""
    id: str | None = None
    type: Literal["function"] | None = None


class ChatMessage(Answered, omit_defaults=True):
    """Message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = None
    """Thoughts."""
    reasoning_content: str | None = None
    """The same, under the name that it had first."""
    tool_calls: list[MadeToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(Answered, omit_defaults=True):
    """One answer to a conversation."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletion(Answered, omit_defaults=True):
    """The answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class MessageDelta(Answered, omit_defaults=True):
    """Gain of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChunkChoice(Answered, omit_defaults=True):
    """Gain of one answer."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatChunk(Answered, omit_defaults=True):
    """A chunk of a stream of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class Model(Answered, omit_defaults=True):
    """A model that is served; the keys that may be left out are those of Anthropic's API."""

    id: str
    created: int
    root: str
    """Its name in the settings."""
    max_model_len: int
    object: Literal["model"]
    owned_by: str
    type: Literal["model"] | None = None
    display_name: str | None = None
    created_at: str | None = None
    lifecycle: Literal["active"] | None = None


class ModelList(Answered, omit_defaults=True):
    """The answer of ``/v1/models``."""

    data: list[Model]
    object: Literal["list"]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool | None = None


class Tokenized(Answered):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answered):
    """The answer of ``/detokenize``."""

    prompt: str
