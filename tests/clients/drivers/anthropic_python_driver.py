"""Anthropic's package for Python."""

from typing import Any

from anthropic import Anthropic
from pydantic import BaseModel
from said import BASE, CALL, FORM, KEY, MODEL, TEXT, THINKS, THOUGHTS, print_all, weather

client = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
thinks = Anthropic(base_url=THINKS, api_key=KEY, max_retries=0)
schema_of = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tool: Any = {"name": "weather", "description": "Weather", "input_schema": schema_of}
given: Any = {"model": MODEL, "max_tokens": 400}


class Weather(BaseModel):
    city: str
    degrees: int


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def text() -> Any:
    return client.messages.create(messages=[user(TEXT)], **given).content[0].text


def text_stream() -> Any:
    with client.messages.stream(messages=[user(TEXT)], **given) as made:
        return "".join(made.text_stream)


def ask(messages: Any, streamed: bool, client: Anthropic = client, **more: Any) -> Any:
    if not streamed:
        return client.messages.create(messages=messages, **{**given, **more})
    with client.messages.stream(messages=messages, **{**given, **more}) as made:
        return made.get_final_message()


def tools(streamed: bool = False) -> Any:
    messages = [user(CALL)]
    for _ in range(2):
        made = ask(messages, streamed, tools=[tool])
        messages.append({"role": "assistant", "content": made.content})
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": weather(**each.input)}
            for each in made.content
            if each.type == "tool_use"
        ]
        messages.append(user(results))
    return made.content[0].text


def tools_stream() -> Any:
    return tools(streamed=True)


def tools_run() -> Any:
    """Return the last answer of the package's own loop over tools."""
    from anthropic import beta_tool

    made = client.beta.messages.tool_runner(
        messages=[user(CALL)], tools=[beta_tool(weather)], **given
    )
    return made.until_done().content[0].text


def schema() -> Any:
    made: Any = client.messages.parse(messages=[user(FORM)], output_format=Weather, **given)
    return made.parsed_output.model_dump()


def thoughts(streamed: bool = False) -> Any:
    more: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    first = ask([user(THOUGHTS)], streamed, thinks, **more)
    messages = [user(THOUGHTS), {"role": "assistant", "content": first.content}, user(TEXT)]
    second = ask(messages, streamed, thinks, **more)
    return [first.content[0].thinking, second.content[-1].text]


def thoughts_stream() -> Any:
    return thoughts(streamed=True)


def text_after_cuts() -> Any:
    """Return the answer to histories with a call that was cut after any number of tokens."""
    texts = set()
    for tokens in range(1, 80, 2):
        made = ask([user(CALL)], streamed=False, tools=[tool], max_tokens=tokens)
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": "cut"}
            for each in made.content
            if each.type == "tool_use"
        ]
        said = [{"role": "assistant", "content": made.content}] if made.content else []
        again = [*results, {"type": "text", "text": TEXT}]
        texts.add(ask([user(CALL), *said, user(again)], False, tools=[tool]).content[0].text)
    (text,) = texts
    return text


def tokens() -> Any:
    return (
        client.messages.count_tokens(model=MODEL, messages=[user(CALL)], tools=[tool]).input_tokens
        > 0
    )


print_all(
    *(
        text,
        text_stream,
        tools,
        tools_stream,
        tools_run,
        schema,
        thoughts,
        thoughts_stream,
        text_after_cuts,
        tokens,
    )
)
