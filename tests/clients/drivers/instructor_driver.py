"""instructor: each mode for OpenAI's and Anthropic's packages."""

import json
from typing import Any

import instructor
from anthropic import Anthropic
from openai import OpenAI
from pydantic import BaseModel
from said import ANSWER, BASE, FORM, KEY, MODEL, call, print_all, say

openai = OpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
anthropic = Anthropic(base_url=BASE, api_key=KEY, max_retries=0)
CALL = call("Weather", **ANSWER)
PARTIAL = call("PartialWeather", **ANSWER)
FENCED = say(f"```json\n{json.dumps(ANSWER)}\n```")


class Weather(BaseModel):
    city: str
    degrees: int


def ask(client: Any, content: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    made = client.chat.completions.create(
        model=MODEL, messages=messages, response_model=Weather, max_retries=0, **more
    )
    return made.model_dump()


def schema_tools() -> Any:
    return ask(instructor.from_openai(openai, mode=instructor.Mode.TOOLS), CALL)


def schema_tools_stream() -> Any:
    client = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)
    messages: Any = [{"role": "user", "content": PARTIAL}]
    made = client.chat.completions.create_partial(
        model=MODEL, messages=messages, response_model=Weather
    )
    return [each.model_dump() for each in made][-1]


def schema_tools_strict() -> Any:
    return ask(instructor.from_openai(openai, mode=instructor.Mode.TOOLS_STRICT), CALL)


def schema_json() -> Any:
    return ask(instructor.from_openai(openai, mode=instructor.Mode.JSON), FORM)


def schema_json_schema() -> Any:
    return ask(instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA), FORM)


def schema_markdown() -> Any:
    return ask(instructor.from_openai(openai, mode=instructor.Mode.MD_JSON), FENCED)


def schema_responses_tools() -> Any:
    return ask(instructor.from_openai(openai, mode=instructor.Mode.RESPONSES_TOOLS), CALL)


def schema_anthropic_tools() -> Any:
    client = instructor.from_anthropic(anthropic, mode=instructor.Mode.ANTHROPIC_TOOLS)
    return ask(client, CALL, max_tokens=300)


def schema_anthropic_json() -> Any:
    client = instructor.from_anthropic(anthropic, mode=instructor.Mode.ANTHROPIC_JSON)
    return ask(client, FENCED, max_tokens=300)


print_all(
    *(
        schema_tools,
        schema_tools_stream,
        schema_tools_strict,
        schema_json,
        schema_json_schema,
        schema_markdown,
        schema_responses_tools,
    ),
    *(schema_anthropic_tools, schema_anthropic_json),
)
