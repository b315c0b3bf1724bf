"""The tutorial, followed word by word: its package is built, installed and used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from architecture.snippets import ROOT, blocks, run, run_page, write
from paged_core import LLM, SamplingParams
from paged_core.plugins.registry import Registry

pytestmark = pytest.mark.heavy


TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The tutorial's files."""
    folder = tmp_path / "turns"
    for block in blocks(TUTORIAL):
        if block.file:
            write(block, folder)
    return folder


@pytest.fixture
def installed(sources: Path, tmp_path: Path) -> Path:
    """A folder of packages that the tutorial's is installed into."""
    pytest.importorskip("hatchling", reason="what builds the package is not installed")
    target = tmp_path / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(sources)], check=True)
    return target


def test_the_tutorial_works_as_written(installed: Path, tmp_path: Path) -> None:
    run_page(TUTORIAL, tmp_path, [installed])


def test_its_scheduler_passes_the_conformance_kit(installed: Path, sources: Path) -> None:
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider test_turns.py"
    lines = run(command, sources, [installed])
    assert "passed" in lines[-1], "\n".join(lines)
    assert "failed" not in lines[-1]


def test_its_scheduler_preempts_and_serves_groups_that_fork(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than fit at once: the text is that of the default."""
    monkeypatch.syspath_prepend(str(sources))
    for name in [name for name in sys.modules if name.partition(".")[0] == "turns"]:
        monkeypatch.delitem(sys.modules, name)
    from turns import plugin  # type: ignore[import-not-found]

    registry = Registry.discover().extended(plugin)
    prompts = [list(range(1, 2 + 3 * number)) for number in range(8)]
    sampling = [SamplingParams(max_tokens=5 + number, n=1 + number % 3) for number in range(8)]
    tokens = {}
    for scheduler in ("token_budget", "turns"):
        with LLM(
            registry=registry,
            scheduler=scheduler,
            executor="memory",
            block_size=4,
            num_blocks=16,
            max_model_len=128,
        ) as llm:
            generations = llm.submit(prompts, sampling)
            for _ in llm.run(generations):
                pass
            outputs = [generation.output() for generation in generations]
            tokens[scheduler] = [[one.token_ids for one in out.outputs] for out in outputs]
            if scheduler == "turns":
                assert any(generation.group.num_preemptions for generation in generations)
            kv_cache = llm.engine.kv_cache
            assert kv_cache.num_free == kv_cache.num_blocks
    assert tokens["turns"] == tokens["token_budget"]
