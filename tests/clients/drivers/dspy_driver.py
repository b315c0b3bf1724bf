"""DSPy: its adapters for chats, JSON and functions."""

import json
from typing import Any

import dspy
from said import ANSWER, BASE, KEY, MODEL, print_all, say

model = dspy.LM(f"openai/{MODEL}", api_base=f"{BASE}/v1", api_key=KEY, cache=False)


class Weather(dspy.Signature):
    """Answer a question."""

    question: str = dspy.InputField()
    city: str = dspy.OutputField()
    degrees: int = dspy.OutputField()


def ask(adapter: Any, said: str) -> Any:
    with dspy.context(lm=model, adapter=adapter):
        made = dspy.Predict(Weather)(question=f"How warm is it? {say(said)}")
    return {"city": made.city, "degrees": made.degrees}


def schema_chat() -> Any:
    fields = "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in ANSWER.items())
    return ask(dspy.ChatAdapter(), f"{fields}\n\n[[ ## completed ## ]]")


def schema_json() -> Any:
    return ask(dspy.JSONAdapter(), json.dumps(ANSWER))


print_all(schema_chat, schema_json)
