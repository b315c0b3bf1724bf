"""From the fields of a request to what an engine is given: prompts, sampling parameters, ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from paged_core.sampling_params import SamplingParams
from paged_core.text.front_end import Prompt
from paged_core.text.generation import Generation
from paged_plugins.server.answer import generations
from paged_plugins.server.errors import ApiError, refused
from paged_plugins.server.http.endpoint import check_depth
from paged_plugins.server.openai.formats import Format, format_of, runs_elsewhere
from paged_plugins.server.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    Generated,
    Message,
    TokenizeRequest,
    ToolCall,
    check_refusals,
)
from paged_plugins.server.parsers.json_text import mended
from paged_plugins.server.service import Service
from paged_plugins.server.settings import HttpSettings

_MESSAGES = 4096
"""Most messages of a conversation; or as many as the model takes tokens, if that is more."""
_TOOLS = 1024
_TOOL_SIZE = 256
"""Characters, about, of the description of a tool."""
_SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop",
    "top_k",
    "min_p",
    "repetition_penalty",
    "best_of",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "allowed_token_ids",
    "bad_words",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "truncate_prompt_tokens",
    "prompt_logprobs",
)
"""Fields that sampling parameters have under the same name."""


# ---------------------------------------------------------------------- requests


def completion_generations(
    service: Service, body: CompletionRequest, answer_id: str, max_tokens: int
) -> tuple[list[Generation], Format]:
    """Return the requests that an engine is given for a completion, one for each prompt.

    Raises:
        ApiError, RequestError: it can never be served.
    """
    asked = format_of(service, body)
    changes = dict(asked.sampling)
    scores = body.logprobs is not None or body.max_tokens == 0
    if body.echo and scores and body.prompt_logprobs is None:
        changes["prompt_logprobs"] = body.logprobs or 0
    sampling = _sampling_params(
        service, body, max_tokens=max_tokens, logprobs=body.logprobs, **changes
    )
    prompts = _prompts_of(body.prompt, special=body.add_special_tokens)
    return _generations(service, body, answer_id, prompts, sampling), asked


def chat_generations(
    service: Service, body: ChatRequest, answer_id: str
) -> tuple[list[Generation], Format]:
    """Return the request that an engine is given for a conversation, and the form of its answer.

    Raises:
        ApiError, RequestError: it can never be served.
    """
    prompt = chat_prompt(service, body)
    asked = format_of(service, body, prompt["prompt"] if isinstance(prompt, Mapping) else None)
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
        if max_tokens < 1:
            message = f"max_completion_tokens must be at least 1, not {max_tokens}"
            raise refused("max_completion_tokens", message)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    if body.top_logprobs and not body.logprobs:
        raise refused("top_logprobs", "top_logprobs needs logprobs; set it to true")
    sampling = _sampling_params(
        service, body, max_tokens=max_tokens, logprobs=logprobs, **asked.sampling
    )
    return _generations(service, body, answer_id, [prompt], sampling), asked


def _generations(
    service: Service,
    body: Generated,
    answer_id: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
) -> list[Generation]:
    _check_choices(sampling, len(prompts), service.options)
    fields = {
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt,
        "tenant": body.user or "",
        "session": body.prompt_cache_key or "",
    }
    prompts = _cut_prompts(service, body, prompts, sampling)
    return generations(service, answer_id, prompts, sampling, fields, body.deadline)


# ---------------------------------------------------------------------- fields


def _sampling_params(
    service: Service,
    body: Generated,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    **changes: Any,
) -> SamplingParams:
    """Return what a request asks for; the temperature is 1 unless it or the model says another.

    Args:
        max_tokens: ``None``: as the model says, or as many as its length allows.
        changes: what takes the place of the request's own values.

    Raises:
        ApiError, RequestError: a value is out of range, or contradicts another one.
    """
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if body.use_beam_search:
        given.setdefault("beam_width", given.get("n", 1))
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    options = service.options
    _check_logprobs("logprobs" if hasattr(body, "prompt") else "top_logprobs", logprobs, options)
    _check_logprobs("prompt_logprobs", body.prompt_logprobs, options)
    if body.stream:
        for name in ("best_of", "beam_width", "use_beam_search", "prompt_logprobs"):
            if (value := getattr(body, name)) is not None and value is not False:
                raise refused(name, f"{name} has nothing to stream; leave out stream or {name}")
    elif body.stream_options is not None:
        raise refused("stream_options", "stream_options are for a stream; set stream to true")
    if body.deadline is not None and not body.deadline > 0:
        raise refused("deadline", f"deadline must be more than 0 seconds, not {body.deadline}")
    if body.top_p == 0:
        given |= {"top_p": 1, "top_k": 1}  # the fewest tokens that reach a sum are one
    if body.best_of == 1 and given.get("n", 1) == 1:
        del given["best_of"]  # what OpenAI's older clients send
    given |= {"logprobs": logprobs, **changes}
    completed = service.client.front_end.completed(given, temperature=1.0, max_tokens=None)
    return SamplingParams(**completed)


def _check_logprobs(name: str, value: int | None, options: HttpSettings) -> None:
    most = options.max_logprobs
    if value is None or (value >= -1 if most == -1 else 0 <= value <= most):
        return
    allowed = (
        "at least 0, or -1 for all" if most == -1 else f"from 0 to {most} (server.max_logprobs)"
    )
    raise refused(name, f"{name} must be {allowed}, not {value}")


def answer_id(body: Generated, prefix: str) -> str:
    """Return the id of an answer, by which it can be aborted.

    Raises:
        ApiError: the client's own is too long.
    """
    if body.request_id is None:
        return f"{prefix}{uuid4().hex}"
    if not 0 < len(body.request_id) <= 128:
        raise refused("request_id", "request_id must have from 1 to 128 characters")
    return f"{prefix}{body.request_id}"


def _prompts_of(prompt: str | list[Any], *, special: bool | None) -> list[Prompt]:
    """Return one or several prompts: text, token ids, or a list of either.

    Args:
        special: whether special tokens are put around a text.

    Raises:
        ApiError: it is something else.
    """
    if isinstance(prompt, str) or (prompt and all(type(each) is int for each in prompt)):
        prompts: Sequence[Any] = [prompt]
    else:
        prompts = prompt
    if not prompts:
        raise refused("prompt", "prompt is empty; give a text or token ids")
    options = {} if special is None else {"add_special_tokens": special}
    made: list[Prompt] = []
    for each in prompts:
        if isinstance(each, str):
            made.append({"prompt": each, **options} if options else each)
        elif isinstance(each, list) and all(type(token) is int for token in each):
            made.append(each)
        else:
            raise refused("prompt", "prompt must be a text, token ids, or a list of either")
    if [] in made:
        raise refused("prompt", "prompt is empty; it needs at least one token")
    return made


def _cut_prompts(
    service: Service, body: Generated, prompts: Sequence[Prompt], sampling: SamplingParams
) -> Sequence[Prompt]:
    """Return prompts, or the token ids at their beginnings, if it is the ends that are left out.

    Raises:
        RequestError: a prompt is none.
    """
    limit = sampling.truncate_prompt_tokens
    if limit is None or body.truncation_side != "right":
        return prompts
    front_end = service.front_end
    most = front_end.max_model_len - 1 if limit == -1 else limit
    return [front_end.encode(prompt, sampling)[1][:most] for prompt in prompts]


def _check_choices(sampling: SamplingParams, num_prompts: int, options: HttpSettings) -> None:
    """Refuse a request for more sequences than the server lets one have.

    Raises:
        ApiError: it asks for them.
    """
    if num_prompts * sampling.width > options.max_choices:
        name = "n" if sampling.width > 1 else "prompt"
        raise refused(
            name,
            f"{num_prompts} prompts with {sampling.width} sequences each are more than the "
            f"{options.max_choices} that a request may have (server.max_choices)",
        )


# ---------------------------------------------------------------------- conversations


def chat_prompt(service: Service, body: ChatRequest | TokenizeRequest) -> Prompt:
    """Return the prompt that the chat template makes of a conversation.

    Raises:
        ApiError, RequestError: it is empty, or the template refuses it.
    """
    if not body.messages:
        raise refused("messages", "messages is empty; give at least one message")
    many = max(_MESSAGES, service.front_end.max_model_len)
    bounds = {"messages": many, "documents": many, "functions": _TOOLS, "tools": _TOOLS}
    for field, most in bounds.items():
        entries = getattr(body, field, None) or ()
        if len(entries) > most:
            raise refused(field, f"{field} has {len(entries)} entries; {most} are read at most")
    check_depth("chat_template_kwargs", body.chat_template_kwargs)
    check_depth("documents", body.documents)
    check_depth("tools", body.tools)
    (prompt,) = service.client.front_end.chat_prompts(
        _plain_messages(body.messages),
        tools=[tool for tool in body.tools or () if not runs_elsewhere(tool)] or None,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
        chat_template_kwargs=_template_options(body),
    )
    if body.add_special_tokens and isinstance(prompt, Mapping):
        return {**prompt, "add_special_tokens": True}
    return prompt


def _template_options(body: ChatRequest | TokenizeRequest) -> dict[str, Any] | None:
    """Return what else the chat template is told; the client's own words come first."""
    own: dict[str, Any] = {}
    if body.documents is not None:
        own["documents"] = body.documents
    if body.reasoning_effort == "none":
        own["enable_thinking"] = False
    elif body.reasoning_effort is not None:
        own["reasoning_effort"] = body.reasoning_effort
    if (thinking := body.thinking) is not None:
        kind = thinking.get("type") if isinstance(thinking, dict) else thinking
        if kind not in (True, False, "enabled", "disabled"):
            raise refused("thinking.type", f"thinking.type is enabled or disabled, not {kind!r}")
        own["thinking"] = own["enable_thinking"] = kind in (True, "enabled")
    if body.enable_thinking is not None:
        own["enable_thinking"] = body.enable_thinking
    return own | (body.chat_template_kwargs or {}) or None


def size_of(body: ChatRequest | TokenizeRequest) -> int:
    """Return about how many characters a conversation has for its template."""
    size = _TOOL_SIZE * len(body.tools or ())
    for told in (body.tools, body.documents, body.chat_template_kwargs):
        size += len(msgspec.json.encode(told)) if told else 0
    for each in body.messages or ():
        size += sum(map(len, (*texts_of(each), each.reasoning_content or each.reasoning or "")))
        called = each.tool_calls or each.function_call
        size += len(msgspec.json.encode(called)) if called else 0
    return size


def texts_of(message: Message) -> list[str]:
    """Return the texts of the parts of a message."""
    content = message.content or ""
    if isinstance(content, str):
        return [content]
    return [part.text or part.refusal or "" for part in content]


def _plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as templates know them, with older calls and results as those of tools."""
    made = [_plain(message, f"messages.{place}") for place, message in enumerate(messages)]
    call = ""
    for place, (message, plain) in enumerate(zip(messages, made, strict=True)):
        if message.function_call is not None:
            call = f"call_{place}"
            function = _called(ToolCall(id=call, function=message.function_call))
            plain["tool_calls"] = [{"id": call, "type": "function", "function": function}]
        elif message.role == "function":
            plain |= {"role": "tool", "tool_call_id": call}
    return made


def _plain(message: Message, path: str) -> dict[str, Any]:
    """Return a message as templates know it: with arguments of functions as objects.

    Raises:
        ApiError: arguments are no JSON, or a part is not for its role.
    """
    made: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.role == "developer":
        made["role"] = "system"
    if isinstance(message.content, list):
        check_refusals(message.role, message.content, path)
        made["content"] = [{"type": "text", "text": text} for text in texts_of(message)]
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if reasoning := message.reasoning_content or message.reasoning:
        made["reasoning_content"] = reasoning
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _called(call)}
            for call in message.tool_calls
        ]
    return made


def _called(call: ToolCall) -> dict[str, Any]:
    """Return the function of a call; a custom tool is one that takes an ``input``."""
    if call.custom is not None:
        return {"name": call.custom.name, "arguments": {"input": call.custom.input}}
    if call.function is None:
        raise refused("messages", "a tool call has no function; give its name and arguments")
    return {"name": call.function.name, "arguments": _arguments(call.function.arguments)}


def _arguments(text: str) -> Any:
    """Return the arguments of a call of an earlier turn, which may have been cut short.

    Those that are nested too deep to work on stay the text that they are.
    """
    try:
        found = msgspec.json.decode(text or "{}")
        check_depth("messages", found)
    except (RecursionError, ApiError):
        return text
    except (msgspec.DecodeError, UnicodeError):
        try:
            return msgspec.json.decode(mended(text))
        except ValueError:
            raise refused("messages", "the arguments of a tool call are no JSON") from None
    return found
