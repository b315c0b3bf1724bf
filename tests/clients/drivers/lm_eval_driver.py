"""lm-evaluation-harness: a task that generates, and one that compares log-likelihoods."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from said import BASE, MODEL, print_all, say

COMMON = """
dataset_path: json
dataset_kwargs: {data_files: said.jsonl}
test_split: train
doc_to_text: "{{question}}"
target_delimiter: ""
metadata: {version: 1}
"""
TASKS = {
    "said": """
task: said
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 64, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "chosen": """
task: chosen
output_type: multiple_choice
doc_to_choice: ["cold.", "warm."]
doc_to_target: 1
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
}


def evaluate(tokenizer: str) -> Any:
    """Return what each task measures."""
    tasks, out = Path.cwd() / "tasks", Path(mkdtemp(dir="."))
    tasks.mkdir(exist_ok=True)
    for name, text in TASKS.items():
        (tasks / f"{name}.yaml").write_text(COMMON + text)
    row = {"question": f"How is it? {say('warm.')}", "answer": "warm."}
    Path("said.jsonl").write_text(json.dumps(row) + "\n")
    model = f"model={MODEL},base_url={BASE}/v1/completions,max_retries=1,{tokenizer}"
    arguments = ["--model", "local-completions", "--model_args", model, "--tasks", ",".join(TASKS)]
    arguments += ["--include_path", str(tasks), "--output_path", str(out)]
    command = [str(Path(sys.executable).with_name("lm_eval")), "run", *arguments]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(Path.cwd() / "hf")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    (report,) = out.rglob("results_*.json")
    results = json.loads(report.read_text())["results"]
    return [results["said"]["exact_match,none"], results["chosen"]["acc,none"]]


def scores_local_tokenizer() -> Any:
    return evaluate(f"tokenizer_backend=huggingface,tokenizer={os.environ['FOLDER']}")


def scores_remote_tokenizer() -> Any:
    return evaluate("tokenizer_backend=remote")


print_all(scores_local_tokenizer, scores_remote_tokenizer)
