"""Haystack: its generator for OpenAI's chats, and an agent."""

from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from said import BASE, CALL, KEY, MODEL, TEXT, print_all, weather


def generator(**more: Any) -> Any:
    key = Secret.from_token(KEY)
    return OpenAIChatGenerator(api_key=key, model=MODEL, api_base_url=f"{BASE}/v1", **more)


def text() -> Any:
    return generator().run([ChatMessage.from_user(TEXT)])["replies"][0].text


def text_stream() -> Any:
    texts: list[str] = []
    made = generator(streaming_callback=lambda chunk: texts.append(chunk.content))
    made.run([ChatMessage.from_user(TEXT)])
    return "".join(texts)


def tools(**more: Any) -> Any:
    agent = Agent(chat_generator=generator(**more), tools=[create_tool_from_function(weather)])
    return agent.run(messages=[ChatMessage.from_user(CALL)])["last_message"].text


def tools_stream() -> Any:
    return tools(streaming_callback=lambda chunk: None)


print_all(text, text_stream, tools, tools_stream)
