"""Base address, texts that the model is told to say, and what a driver prints."""

import json
import os
import traceback
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

BASE = os.environ.get("BASE", "")
THINKS = os.environ.get("THINKS", "")
"""Address of a server that separates thoughts."""
MODEL = "told"
KEY = "none"


def say(text: str) -> str:
    """Return what makes the model say a text: see server.told, which programs cannot import."""
    return f"[say:{urlsafe_b64encode(text.encode()).decode()}]"


ANSWER = {"city": "Paris", "degrees": 21}
TEXT = say("Blöcke sind Seiten. 😀")
FORM = f"How warm is it in Paris? {say(json.dumps(ANSWER))}"
THOUGHTS = say("<think>\nPages?\n</think>\n\nBlöcke sind Seiten. 😀")


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: Any = {"name": "weather", "description": "Weather", "parameters": PARAMETERS}
"""Function that the model calls, as OpenAI's API has it."""


def user(content: str) -> list[Any]:
    """Return a conversation that a user begins."""
    return [{"role": "user", "content": content}]


def call(name: str, **arguments: Any) -> str:
    """Return a request of which the answer calls a function, in the form of Hermes."""
    said = json.dumps({"name": name, "arguments": arguments})
    return f"How warm is it in Paris? {say(f'<tool_call>{chr(10)}{said}{chr(10)}</tool_call>')}"


CALL = call("weather", city="Paris")
CALLED: list[str] = []
"""Cities with which :func:`weather` was called."""


def weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: name of the city.
    """
    CALLED.append(city)
    return f"21 degrees. {say('It is warm.')}"


def print_all(*conversations: Callable[[], Any]) -> None:
    """Hold conversations, and print what each returns, or its error."""
    found = {}
    for each in conversations:
        CALLED.clear()
        try:
            found[each.__name__] = each()
        except Exception:  # noqa: BLE001 - shown by the test
            found[each.__name__] = traceback.format_exc()
    print("\n" + json.dumps(found))  # noqa: T201 - the last line is read
