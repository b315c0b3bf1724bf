"""Programs that people point at a server hold conversations with a real one, whole and streamed.

Each has a driver, which prints what its conversations ended with. The model says what it is told,
so that every answer is known.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.install import FOLDER, VERSIONS
from server.served import serve_process
from server.told import make_told, told_environ, told_options

pytestmark = pytest.mark.long
_LIMIT = 600.0
"""Seconds after which a program is stuck."""
ENDS: dict[str, Any] = {
    "text": "Blöcke sind Seiten. 😀",
    "tools": "It is warm.",
    "schema": {"city": "Paris", "degrees": 21},
    "thoughts": ["Pages?", "Blöcke sind Seiten. 😀"],
    "tokens": True,
    "handoff": ["Weather", "Blöcke sind Seiten. 😀"],
    "too": ["ContextWindowExceededError"],
    "scores": [1.0, 1.0],
    "success": [["success", 1.0], ["success", 1.0]],
    "requests": [4, 0, 0, 8],
}
"""End of a conversation, by the first word of its name."""
CHATS = "text text_stream tools tools_stream"
PROGRAMS = {
    "openai_python": (
        f"{CHATS} schema schema_beside_tools text_after_cuts text_of_responses"
        " text_of_responses_stream tools_of_responses tools_of_responses_stream schema_of_responses"
    ),
    "openai_node": f"{CHATS} schema text_of_responses tools_of_responses",
    "anthropic_python": f"{CHATS} tools_run schema thoughts thoughts_stream text_after_cuts tokens",
    "anthropic_node": f"{CHATS} tools_run",
    "ai_sdk": f"{CHATS} schema schema_beside_tools",
    "litellm": f"{CHATS} schema text_of_responses too_long",
    "instructor": (
        "schema_tools schema_tools_stream schema_tools_strict schema_json schema_json_schema"
        " schema_markdown schema_responses_tools schema_anthropic_tools schema_anthropic_json"
    ),
    "pydantic_ai": "text tools tools_stream text_second schema_native schema_prompted schema_tool",
    "openai_agents": f"{CHATS} tools_required schema handoff",
    "llama_index": f"{CHATS} text_of_completions schema",
    "dspy": "schema_chat schema_json",
    "haystack": CHATS,
    "smolagents": f"{CHATS} tools_code",
    "llm": f"{CHATS} schema",
    "lm_eval": "scores_local_tokenizer scores_remote_tokenizer",
    "inspect": "success_text success_tools success_schema",
    "guidellm": "requests_chats requests_completions",
    "coding_agents": (
        "text_of_claude tools_of_claude text_next_of_claude"
        " text_of_codex tools_of_codex text_next_of_codex text_of_cline tools_of_cline"
    ),
}
"""Conversations, by programs."""
_SDKS = ("openai_python", "anthropic_python", "pydantic_ai", "llm", "inspect", "coding_agents")
"""Programs whose environment is ``sdks``."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    copy = FOLDER / VERSIONS.name
    if not copy.exists() or copy.read_text() != VERSIONS.read_text():
        pytest.skip(f"python tests/clients/install.py installs the programs into {FOLDER}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_told(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    options = ("--tool-parser", "hermes", "--server.served-model-name", '["told"]')
    with serve_process(*told_options(folder), *options, **told_environ(folder)) as served:
        yield f"http://127.0.0.1:{served.port()}"


@pytest.fixture(scope="module")
def thinks(folder: Path) -> Iterator[str]:
    options = ("--reasoning-parser", "qwen3", "--server.served-model-name", '["told"]')
    with serve_process(*told_options(folder), *options, **told_environ(folder)) as served:
        yield f"http://127.0.0.1:{served.port()}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, address: str, thinks: str, folder: Path, tmp_path: Path) -> None:
    for each in VERSIONS.with_name("drivers").iterdir():
        shutil.copy(each, tmp_path)  # node looks for packages beside them
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    (driver,) = tmp_path.glob(f"{program}_driver.*")
    python = FOLDER / ("sdks" if program in _SDKS else "programs") / "bin" / "python"
    done = subprocess.run(
        [str(python) if driver.suffix == ".py" else "node", str(driver)],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "BASE": address,
            "THINKS": thinks,
            "FOLDER": str(folder),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {name: ENDS[name.partition("_")[0]] for name in PROGRAMS[program].split()}
