"""LiteLLM: chats and responses, for a server of OpenAI's form and one of Anthropic's."""

import json
from typing import Any

import litellm
from pydantic import BaseModel
from said import (
    ANSWER,
    BASE,
    CALL,
    FORM,
    FUNCTION,
    KEY,
    MODEL,
    TEXT,
    call,
    print_all,
    user,
    weather,
)

openai: Any = {"model": f"openai/{MODEL}", "api_base": f"{BASE}/v1", "api_key": KEY}
hosted: Any = {**openai, "model": f"hosted_vllm/{MODEL}"}
anthropic: Any = {"model": f"anthropic/{MODEL}", "api_base": BASE, "api_key": KEY}


class Weather(BaseModel):
    city: str
    degrees: int


def text() -> Any:
    (text,) = {
        litellm.completion(messages=user(TEXT), **each).choices[0].message.content
        for each in (openai, hosted, anthropic)
    }
    return text


def text_stream() -> Any:
    (text,) = {
        "".join(
            chunk.choices[0].delta.content or ""
            for chunk in litellm.completion(messages=user(TEXT), stream=True, **each)
        )
        for each in (openai, hosted, anthropic)
    }
    return text


def ask(given: Any, messages: list[Any], streamed: bool) -> Any:
    tools = [{"type": "function", "function": FUNCTION}]
    made = litellm.completion(messages=messages, tools=tools, stream=streamed, **given)
    if streamed:
        made = litellm.stream_chunk_builder(list(made), messages=messages)
    return made.choices[0].message


def tools(streamed: bool = False) -> Any:
    found = set()
    for given in (openai, hosted, anthropic):
        messages = user(CALL)
        for _ in range(2):
            message = ask(given, messages, streamed)
            messages.append(message)
            for each in message.tool_calls or []:
                result = weather(**json.loads(each.function.arguments))
                messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
        found.add(message.content)
    (text,) = found
    return text


def tools_stream() -> Any:
    return tools(streamed=True)


def schema() -> Any:
    found = []
    tool = call("json_tool_call", **ANSWER)  # by which Anthropic's models are asked for a form
    for each, asked in ((openai, FORM), (hosted, FORM), (anthropic, tool)):
        made = litellm.completion(messages=user(asked), response_format=Weather, **each)
        found.append(json.loads(made.choices[0].message.content))
    assert found[0] == found[1] == found[2], found
    return found[0]


def text_of_responses() -> Any:
    (text,) = {litellm.responses(input=TEXT, **each).output_text for each in (openai, anthropic)}
    return text


def too_long() -> Any:
    """Return the type of the error for a prompt that is longer than the model."""
    names = set()
    for each in (openai, hosted, anthropic):
        try:
            litellm.completion(messages=user("x" * 300_000), num_retries=0, **each)
        except litellm.APIError as error:
            names.add(type(error).__name__)
        except litellm.BadRequestError as error:
            names.add(type(error).__name__)
    return sorted(names)


print_all(text, text_stream, tools, tools_stream, schema, text_of_responses, too_long)
