"""Claude Code, Codex and Cline, with a home of their own: an answer, a command, the next turn."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from said import BASE, MODEL, TEXT, call, print_all, say

HOME, WORK, BIN = Path.cwd() / "home", Path.cwd() / "work", Path.cwd() / "node_modules" / ".bin"
ECHO = f"echo '{say('It is warm.')}'"
CODEX = f"""
model = "{MODEL}"
model_provider = "paged"
[model_providers.paged]
name = "paged"
base_url = "{BASE}/v1"
wire_api = "responses"
"""
for each in (HOME / ".codex", WORK):
    each.mkdir(parents=True, exist_ok=True)
(HOME / ".codex" / "config.toml").write_text(CODEX)


def run(*command: str) -> list[Any]:
    """Return the lines of JSON that a command prints."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(HOME),
        "ANTHROPIC_BASE_URL": BASE,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=WORK,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def claude(asked: str, *options: str) -> Any:
    events = run("claude", "-p", asked, "--output-format", "stream-json", "--verbose", *options)
    return events[-1]["result"]


def codex(asked: str, *options: str) -> Any:
    free = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    events = run("codex", "exec", *options, *free, asked)
    items = [each["item"] for each in events if each["type"] == "item.completed"]
    assert not [each for each in events if each["type"] in ("error", "turn.failed")], events
    return [each["text"] for each in items if each["type"] == "agent_message"][-1]


def cline(asked: str, *options: str) -> Any:
    signed_in = HOME / "cline"
    if not signed_in.exists():
        signing_in = ("-p", "openai", "-k", "none", "-m", MODEL, "-b", f"{BASE}/v1")
        run("cline", "auth", *signing_in, "--data-dir", str(signed_in))
    events = run("cline", "--json", "-P", "openai", "--data-dir", str(signed_in), *options, asked)
    return events[-1]["text"]


def text_of_claude() -> Any:
    return claude(TEXT)


def tools_of_claude() -> Any:
    asked = call("Bash", command=ECHO, description="Tell the weather")
    return claude(asked, "--allowedTools", "Bash")


def text_next_of_claude() -> Any:
    return claude(TEXT, "--continue")


def text_of_codex() -> Any:
    return codex(TEXT)


def tools_of_codex() -> Any:
    return codex(call("exec_command", cmd=ECHO))


def text_next_of_codex() -> Any:
    return codex(TEXT, "resume", "--last")


def text_of_cline() -> Any:
    return cline(f"Say {TEXT}")  # a word alone is taken for a command


def tools_of_cline() -> Any:
    return cline(call("run_commands", commands=[ECHO]))


print_all(
    text_of_claude,
    tools_of_claude,
    text_next_of_claude,
    text_of_codex,
    tools_of_codex,
    text_next_of_codex,
    text_of_cline,
    tools_of_cline,
)
