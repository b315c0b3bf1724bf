"""LlamaIndex: its model for servers of OpenAI's form, an agent, a form."""

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from said import ANSWER, BASE, CALL, KEY, MODEL, TEXT, call, print_all, weather

model = OpenAILike(
    model=MODEL,
    api_base=f"{BASE}/v1",
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32_768,
)
messages = [ChatMessage(role="user", content=TEXT)]


class Weather(BaseModel):
    """The weather."""

    city: str
    degrees: int


def text() -> Any:
    return model.chat(messages).message.content


def text_stream() -> Any:
    return "".join(each.delta or "" for each in model.stream_chat(messages))


def text_of_completions() -> Any:
    return (
        OpenAILike(model=MODEL, api_base=f"{BASE}/v1", api_key=KEY, max_tokens=99)
        .complete(TEXT)
        .text
    )


def tools(streaming: bool = False) -> Any:
    async def run() -> Any:
        agent = FunctionAgent(
            tools=[weather], llm=model, system_prompt="Help.", streaming=streaming
        )
        return str(await agent.run(user_msg=CALL))

    return asyncio.run(run())


def tools_stream() -> Any:
    return tools(streaming=True)


def schema() -> Any:
    made: Any = model.structured_predict(
        Weather, PromptTemplate("{asked}"), asked=call("Weather", **ANSWER)
    )
    return made.model_dump()


print_all(text, text_stream, text_of_completions, tools, tools_stream, schema)
