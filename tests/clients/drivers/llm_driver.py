"""The command ``llm``."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from said import BASE, CALL, FORM, MODEL, TEXT, print_all

HOME = Path.cwd() / "llm"
FUNCTION = """
def weather(city: str) -> str:
    "Return the weather of a city."
    from said import weather
    return weather(city)
"""
HOME.mkdir(exist_ok=True)
(HOME / "extra-openai-models.yaml").write_text(
    f"- model_id: {MODEL}\n  model_name: {MODEL}\n  api_base: {BASE}/v1\n"
    "  supports_tools: true\n  supports_schema: true\n"
)


def llm(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("llm")), "-m", MODEL, *arguments]
    here = str(Path(__file__).parent)
    environ = {
        **os.environ,
        "LLM_USER_PATH": str(HOME),
        "PYTHONPATH": here,
        "OPENAI_API_KEY": "none",
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.removesuffix("\n")


def text() -> Any:
    return llm("--no-stream", TEXT)


def text_stream() -> Any:
    return llm(TEXT)


def tools() -> Any:
    return llm("--no-stream", "--functions", FUNCTION, CALL)


def tools_stream() -> Any:
    return llm("--functions", FUNCTION, CALL)


def schema() -> Any:
    import json

    return json.loads(llm("--schema", "city, degrees int", FORM))


print_all(text, text_stream, tools, tools_stream, schema)
