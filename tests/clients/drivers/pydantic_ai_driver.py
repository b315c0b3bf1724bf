"""Pydantic AI: agents over chats, responses and messages, with each way of asking for a form."""

from typing import Any

from anthropic import AsyncAnthropic
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from said import ANSWER, BASE, CALL, FORM, KEY, MODEL, TEXT, call, print_all, weather

provider = OpenAIProvider(base_url=f"{BASE}/v1", api_key=KEY)
chat = OpenAIChatModel(MODEL, provider=provider)
responses = OpenAIResponsesModel(MODEL, provider=provider)
anthropic = AsyncAnthropic(base_url=BASE, api_key=KEY, max_retries=0)
messages = AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=anthropic))
MODELS = (chat, responses, messages)


class Weather(BaseModel):
    city: str
    degrees: int


def same(values: Any) -> Any:
    """Return what is the same for all models."""
    first, *others = values
    assert all(each == first for each in others), [first, *others]
    return first


def text() -> Any:
    return same(Agent(each).run_sync(TEXT).output for each in MODELS)


def tools() -> Any:
    return same(Agent(each, tools=[weather]).run_sync(CALL).output for each in MODELS)


def tools_stream() -> Any:
    return same(Agent(each, tools=[weather]).run_stream_sync(CALL).get_output() for each in MODELS)


def text_second() -> Any:
    """Return the answer that follows the whole history of calls."""
    found = []
    for each in MODELS:
        agent = Agent(each, tools=[weather])
        first = agent.run_sync(CALL)
        found.append(agent.run_sync(TEXT, message_history=first.all_messages()).output)
    return same(found)


def schema_native() -> Any:
    return same(
        Agent(each, output_type=NativeOutput(Weather), tools=[weather])
        .run_sync(FORM)
        .output.model_dump()
        for each in MODELS[:2]
    )


def schema_prompted() -> Any:
    return same(
        Agent(each, output_type=PromptedOutput(Weather)).run_sync(FORM).output.model_dump()
        for each in MODELS
    )


def schema_tool() -> Any:
    asked = call("final_result", **ANSWER)
    return same(
        Agent(each, output_type=ToolOutput(Weather)).run_sync(asked).output.model_dump()
        for each in MODELS
    )


print_all(text, tools, tools_stream, text_second, schema_native, schema_prompted, schema_tool)
