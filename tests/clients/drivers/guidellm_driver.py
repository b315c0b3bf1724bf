"""guidellm: benchmarks of chats and completions with made-up prompts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from said import BASE, MODEL, print_all


def run(path: str) -> Any:
    """Return how many requests succeeded, failed and were left, and the tokens of each answer."""
    report = Path.cwd() / "report.json"
    arguments = {
        "backend": f"kind=openai_http,target={BASE},request_format={path},model={MODEL}",
        "profile": "kind=concurrent,streams=2",
        "constraint": "kind=max_requests,count=4",
        "tokenizer": f"kind=huggingface_auto,model={os.environ['FOLDER']}",
        "data": "kind=synthetic_text,prompt_tokens=64,output_tokens=8",
        "output": f"kind=json,path={report}",
    }
    options = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    command = [str(Path(sys.executable).with_name("guidellm")), "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, (done.stdout + done.stderr)[-3000:]
    (made,) = json.loads(report.read_text())["benchmarks"]
    totals = made["metrics"]["request_totals"]
    tokens = {each["output_metrics"]["text_tokens"] for each in made["requests"]["successful"]}
    return [totals["successful"], totals["errored"], totals["incomplete"], *tokens]


def requests_chats() -> Any:
    return run("/v1/chat/completions")


def requests_completions() -> Any:
    return run("/v1/completions")


print_all(requests_chats, requests_completions)
