"""Options of vLLM, llama.cpp and transformers are answered with what to write here."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from paged_core import LLM
from paged_core.cli import main
from paged_core.cli.frame import Session
from paged_core.errors import SettingsError

TABLES = tomllib.loads(files("paged_core.settings").joinpath("spellings.toml").read_text("utf-8"))
WORDS = [(table, word) for table, known in TABLES.items() for word in known]


def dashed(word: str) -> str:
    return f"{'-' if len(word) < 4 and word != 'tp' else '--'}{word.replace('_', '-')}"


@cache
def options_of(command: str) -> set[str]:
    loaded = Session({}).load(command)
    return {option for param in loaded.params for option in param.opts}


@pytest.mark.parametrize(("table", "word"), WORDS)
def test_what_is_named_exists_and_what_is_foreign_does_not(table: str, word: str) -> None:
    options = options_of("generate")
    named = re.findall(r"\{([\w.]+)\}", TABLES[table][word])
    assert {f"--{name.replace('_', '-')}" for name in named} <= options
    assert dashed(word) not in options


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (["--gpu-memory-utilization", "0.9"], "write --kv-cache-memory, of the cache alone, in b"),
        (["--swap-space", "4"], "write --num-host-blocks, in blocks and not in GiB"),
        (["--enable-prefix-caching"], "write --block-allocator hash_cached, which is the default"),
        (["-n", "64"], "write --max-tokens if it is llama.cpp's, and --n if"),
        (["-ngl", "99"], "No such option: -ngl; write --device cuda"),
        (["--no-such", "1"], "No such option: --no-such\n"),
    ],
)
def test_on_the_command_line(
    capsys: pytest.CaptureFixture[str], given: list[str], answer: str
) -> None:
    assert main(["generate", "a", *given], {"PATH": ""}) == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (["X/Y"], "write --model X/Y"),
        (["--tensor-parallel-size", "2"], "write --executor workers with --executor.ranks"),
        (["--data-parallel-size=2"], "write --replicas.count"),
        (["--enable-auto-tool-choice"], "--tool-parser says how they write calls"),
        (["--chat-template", "x"], "chat_template.jinja in the folder of --model"),
        (["--generation-config", "vllm"], "write generation_config none"),
        (["--api-key", "x"], "write --server.api-key-file"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_of_the_server(capsys: pytest.CaptureFixture[str], given: list[str], answer: str) -> None:
    assert main(["serve", *given], {"PATH": ""}) == 2
    assert answer in capsys.readouterr().err


def test_in_a_file_the_environment_and_python(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("swap_space: 4\n")
    assert main(["config", "--config", str(file)], {"PATH": ""}) == 2
    assert "no such setting; write num_host_blocks, in blocks" in capsys.readouterr().err
    assert main(["config"], {"PAGED_CORE_MAX_NUM_SEQS": "4"}) == 2
    assert "write PAGED_CORE_SCHEDULER__MAX_NUM_SEQS" in capsys.readouterr().err
    with pytest.raises(SettingsError, match="write kv_cache_memory, of the cache alone"):
        LLM(gpu_memory_utilization=0.9)
