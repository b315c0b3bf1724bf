"""Inspect: evaluations of an answer, of an answer after a call, and of one with a form."""

from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel
from said import BASE, CALL, FORM, KEY, MODEL, TEXT, print_all, weather


class Weather(BaseModel):
    city: str
    degrees: int


@tool(name="weather")
def told_weather() -> Any:
    async def execute(city: str) -> str:
        """Return the weather.

        Args:
            city: name of the city.
        """
        return weather(city)

    return execute


def run(asked: str, target: str, solver: Any, **config: Any) -> Any:
    """Return the status of an evaluation and its accuracy, for each of the APIs."""
    found = []
    for name, base in (("openai-api/paged", f"{BASE}/v1"), ("anthropic", BASE)):
        model = get_model(f"{name}/{MODEL}", base_url=base, api_key=KEY, memoize=False)
        sample = Sample(asked, target=target)
        task = Task([sample], solver=solver, scorer=includes(), config=GenerateConfig(**config))
        (log,) = evaluate(task, model=model, display="none", log_dir="logs", max_tokens=400)
        score = log.results.scores[0].metrics["accuracy"].value if log.results else str(log.error)
        found.append([log.status, score])
    return found


def success_text() -> Any:
    return run(TEXT, "Blöcke sind Seiten. 😀", [generate()])


def success_tools() -> Any:
    return run(CALL, "It is warm.", [use_tools(told_weather()), generate()])


def success_schema() -> Any:
    form = ResponseSchema(name="weather", json_schema=json_schema(Weather))
    return run(FORM, '"degrees": 21', [generate()], response_schema=form)


print_all(success_text, success_tools, success_schema)
