"""OpenAI's package for Python: chats, completions and responses."""

import json
from typing import Any

from openai import OpenAI
from pydantic import BaseModel
from said import BASE, CALL, FORM, FUNCTION, KEY, MODEL, PARAMETERS, TEXT, print_all, user, weather

client = OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
chat: Any = {"model": MODEL, "tools": [{"type": "function", "function": FUNCTION}]}
response: Any = {"model": MODEL, "tools": [{"type": "function", **FUNCTION, "strict": None}]}


class Weather(BaseModel):
    city: str
    degrees: int


def text() -> Any:
    made = client.chat.completions.create(model=MODEL, messages=user(TEXT))
    return made.choices[0].message.content


def text_stream() -> Any:
    made = client.chat.completions.create(model=MODEL, messages=user(TEXT), stream=True)
    return "".join(each.choices[0].delta.content or "" for each in made)


def tools(streamed: bool = False, **more: Any) -> Any:
    messages = user(CALL)
    for _ in range(2):
        if streamed:
            with client.chat.completions.stream(messages=messages, **chat, **more) as made:
                message = made.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(messages=messages, **chat).choices[0].message
        messages.append(message)
        for each in message.tool_calls or []:
            result = weather(**json.loads(each.function.arguments))
            messages.append({"role": "tool", "tool_call_id": each.id, "content": result})
    return message.content


def tools_stream() -> Any:
    return tools(streamed=True)


def schema() -> Any:
    options: Any = {"model": MODEL, "messages": user(FORM), "response_format": Weather}
    return client.chat.completions.parse(**options).choices[0].message.parsed.model_dump()


def schema_beside_tools() -> Any:
    messages = user(FORM)
    strict = {"type": "function", "function": {**FUNCTION, "strict": True}}
    strict["function"]["parameters"] = {**PARAMETERS, "additionalProperties": False}
    options: Any = {"model": MODEL, "tools": [strict], "response_format": Weather}
    with client.chat.completions.stream(messages=messages, **options) as made:
        return made.get_final_completion().choices[0].message.parsed.model_dump()  # type: ignore[union-attr]


def text_after_cuts() -> Any:
    """Return the answers to histories with a call that was cut after any number of tokens."""
    texts = set()
    for tokens in range(1, 80, 2):
        made = client.chat.completions.create(messages=user(CALL), max_tokens=tokens, **chat)
        message = made.choices[0].message
        messages = [*user(CALL), message]
        ids = [each.id for each in message.tool_calls or []]
        messages += [{"role": "tool", "tool_call_id": each, "content": "cut"} for each in ids]
        made = client.chat.completions.create(messages=[*messages, *user(TEXT)], **chat)
        texts.add(made.choices[0].message.content)
    (text,) = texts
    return text


def text_of_responses() -> Any:
    return client.responses.create(model=MODEL, input=TEXT).output_text


def text_of_responses_stream() -> Any:
    with client.responses.stream(model=MODEL, input=TEXT) as made:
        return made.get_final_response().output_text


def tools_of_responses(streamed: bool = False) -> Any:
    items = user(CALL)
    for _ in range(2):
        if streamed:
            with client.responses.stream(input=items, **response) as events:
                made: Any = events.get_final_response()
        else:
            made = client.responses.create(input=items, **response)
        items += made.output
        for each in made.output:
            if each.type == "function_call":
                result = weather(**json.loads(each.arguments))
                items.append(
                    {"type": "function_call_output", "call_id": each.call_id, "output": result}
                )
    return made.output_text


def tools_of_responses_stream() -> Any:
    return tools_of_responses(streamed=True)


def schema_of_responses() -> Any:
    made: Any = client.responses.parse(model=MODEL, input=FORM, text_format=Weather)
    return made.output_parsed.model_dump()


print_all(
    *(text, text_stream, tools, tools_stream, schema, schema_beside_tools, text_after_cuts),
    *(
        text_of_responses,
        text_of_responses_stream,
        tools_of_responses,
        tools_of_responses_stream,
        schema_of_responses,
    ),
)
