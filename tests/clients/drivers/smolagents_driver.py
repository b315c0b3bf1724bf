"""smolagents: an agent that calls functions and one that writes code."""

from typing import Any

from said import BASE, CALL, KEY, MODEL, TEXT, call, print_all, say
from smolagents import ChatMessage, CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(MODEL, api_base=f"{BASE}/v1", api_key=KEY)


@tool
def weather(city: str) -> str:
    """Return what to answer with.

    Args:
        city: name of the city.
    """
    return f"21 degrees. {call('final_answer', answer='It is warm.')}"


def text() -> Any:
    return model([ChatMessage(role="user", content=TEXT)]).content


def text_stream() -> Any:
    made = model.generate_stream([ChatMessage(role="user", content=TEXT)])
    return "".join(each.content or "" for each in made)


def tools(**more: Any) -> Any:
    return ToolCallingAgent(tools=[weather], model=model, verbosity_level=0, **more).run(CALL)


def tools_stream() -> Any:
    return tools(stream_outputs=True)


def tools_code() -> Any:
    said = say("I answer.\n<code>\nfinal_answer('It is warm.')\n</code>")
    return CodeAgent(tools=[], model=model, verbosity_level=0).run(f"How warm is it? {said}")


print_all(text, text_stream, tools, tools_stream, tools_code)
