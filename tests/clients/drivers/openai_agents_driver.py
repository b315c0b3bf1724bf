"""OpenAI's Agents SDK: chats and responses, tools, handoffs, forms."""

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel
from said import BASE, CALL, FORM, KEY, MODEL, TEXT, call, print_all, say, weather

set_tracing_disabled(True)
runner = asyncio.Runner()
client = AsyncOpenAI(base_url=f"{BASE}/v1", api_key=KEY, max_retries=0)
MODELS: Any = (OpenAIChatCompletionsModel(MODEL, client), OpenAIResponsesModel(MODEL, client))
tool = function_tool(weather)


class Weather(BaseModel):
    city: str
    degrees: int


def run(asked: str, streamed: bool = False, **agent: Any) -> Any:
    """Return the output of an agent, which is the same for chats and responses."""

    async def one(model: Any) -> Any:
        made = Agent(name="Assistant", instructions="Be short.", model=model, **agent)
        if streamed:
            result = Runner.run_streamed(made, asked)
            async for _ in result.stream_events():
                pass
            return result.final_output
        return (await Runner.run(made, asked)).final_output

    async def all_of_them() -> Any:
        return [await one(model) for model in MODELS]

    first, second = runner.run(all_of_them())
    assert first == second, (first, second)
    return first


def text() -> Any:
    return run(TEXT)


def text_stream() -> Any:
    return run(TEXT, streamed=True)


def tools() -> Any:
    return run(CALL, tools=[tool])


def tools_stream() -> Any:
    return run(CALL, streamed=True, tools=[tool])


def tools_required() -> Any:
    return run(CALL, tools=[tool], model_settings=ModelSettings(tool_choice="required"))


def schema() -> Any:
    return run(FORM, output_type=Weather, tools=[tool]).model_dump()


def handoff() -> Any:
    """Return the answer of a second agent, to which the first hands the conversation."""
    found = []
    for model in MODELS:
        second = Agent(name="Weather", instructions=f"Then {say('It is warm.')}", model=model)
        triage = Agent(name="Triage", instructions="Hand off.", model=model, handoffs=[second])

        async def both(triage: Any = triage) -> Any:
            result = await Runner.run(triage, call("transfer_to_weather"))
            follow = [*result.to_input_list(), {"role": "user", "content": TEXT}]
            return [
                result.last_agent.name,
                (await Runner.run(result.last_agent, follow)).final_output,
            ]

        found.append(runner.run(both()))
    assert found[0] == found[1], found
    return found[0]


print_all(text, text_stream, tools, tools_stream, tools_required, schema, handoff)
