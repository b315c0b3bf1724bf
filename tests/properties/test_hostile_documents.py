"""Documents that cannot be read are refused with a PagedCoreError; nothing else is raised."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paged_core.cli.options import SettingsArgs
from paged_core.errors import PagedCoreError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings, load_settings, settings_class
from paged_plugins.decisions.replay import check_settings, replay, settings_layer
from paged_plugins.decisions.replay_run import Outcome
from paged_plugins.decisions.scenario import read_case
from paged_plugins.decisions.trace import KEYS, TIMES, read_traces
from properties.hostile_documents import HOSTILE, contents, values

pytestmark = pytest.mark.heavy

REGISTRY = Registry.discover()
SHORT = settings(suppress_health_check=[HealthCheck.too_slow])
LONG = settings(SHORT, max_examples=10_000, deadline=None)

SETTINGS: dict[str, Any] = {
    "profile": "vllm-v1",
    "model": "demo",
    "num_blocks": 64,
    "kv_cache_memory": "2GiB",
    "watermark": 0.01,
    "device": "cpu",
    "scheduler": {"name": "token_budget", "max_num_seqs": 8},
    "queue_order": {"name": "fair", "weights": {"a": 2.0}},
    "evictor": "lru",
    "observers": ["decision_log", {"name": "decision_log", "path": "x.jsonl"}],
}
SCENARIO: dict[str, Any] = {
    "name": "valid",
    "about": "requests of every kind",
    "settings": {"num_blocks": 12, "block_size": 4, "scheduler": {"max_num_seqs": 4}},
    "requests": [
        {"id": "A", "prompt": 9, "output": 3, "priority": 1, "n": 2},
        {"id": "B", "step": 2, "prompt": "0:8 4:9", "output": 4, "cache_salt": "x"},
        {"id": "C", "at": 2.5, "prompt": 5, "output": 2, "tenant": "t", "deadline": 9.0},
    ],
    "aborts": [{"id": "B", "step": 3}],
    "seconds_per_step": 0.5,
    "max_steps": 30,
}
CONVERSATIONS: dict[str, Any] = {
    "name": "conversations",
    "settings": {"num_blocks": 32, "executor": "simulated", "cost_model": {"name": "linear"}},
    "prefixes": {"P": 40, "Q": "0:8"},
    "requests": [
        {"id": "A", "prefix": "P", "prompt": 9, "output": 3},
        {"id": "B", "follows": "A", "after": 1.5, "prompt": "5:9", "output": 2, "deadline": 2.0},
    ],
    "workload": {
        "requests": 6,
        "arrivals": {"poisson": {"rate": 2.0}},
        "lengths": {"prompt": {"uniform": [2, 20]}, "output": {"fixed": 3}},
        "prefixes": {"system": 16, "conversation": {"turns": 2, "think": 1}},
    },
    "seed": 3,
}
STEP: dict[str, Any] = {key: [] for key in KEYS} | {
    "step": 0,
    "scheduled": {"A": 3},
    "cached": {"A": 0},
    "free_blocks": 3,
    "version": 2,
    "evicted": [3],
    "hits": {"A": [1, 2]},
    **dict.fromkeys(TIMES, 0.5),
}
CASE = {"scenario": SCENARIO, "trace": [STEP]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


def read_scenario(path: Path) -> None:
    """Read it, and run the first steps."""
    before = sorted(path.parent.iterdir())
    try:
        case = read_case(path)
        resolved = SettingsArgs(REGISTRY, {}).resolve(settings_layer(case.scenario))
        check_settings(case.scenario, resolved.settings)
        list(islice(replay(case.scenario, REGISTRY, Outcome(), resolved.settings), 40))
    finally:
        assert sorted(path.parent.iterdir()) == before


CASE_FILES = contents(CASE, (".yaml", ".json"))
VARIABLES = st.sampled_from(
    [f"PAGED_CORE_{key.upper()}" for key in EngineSettings.model_fields]
    + ["PAGED_CORE_SCHEDULER__MAX_NUM_SEQS", "paged_core_seed", "PAGED_CORE_X", "PAGED_CORE_"]
)
TEXTS = st.one_of(st.sampled_from([each for each in HOSTILE if isinstance(each, str)]), st.text())
KEYWORDS = st.sampled_from(list(EngineSettings.model_fields))
ENV_PARTS = (
    b"PAGED_CORE_SEED A = 1 ${A}${A} ' \" # \\ \xff export ${A:- } \0"
    b" PAGED_CORE_OBSERVERS=[[[ paged_core_"
)
ENV_FILES = st.lists(st.sampled_from([*ENV_PARTS.split(b" "), b"\n", b" "])).map(b"".join)

READERS: dict[str, tuple[Callable[[Any], object], st.SearchStrategy[Any]]] = {
    "settings files": (
        lambda path: load_settings(REGISTRY, config=path, environ={}),
        contents(SETTINGS, (".yaml", ".json", ".toml")),
    ),
    "variables": (
        lambda environ: load_settings(REGISTRY, environ=environ),
        st.dictionaries(VARIABLES, TEXTS, min_size=1, max_size=1),
    ),
    "keywords": (
        lambda keywords: settings_class(REGISTRY)(**keywords),
        st.dictionaries(KEYWORDS, values, min_size=1, max_size=1),
    ),
    "env files": (
        lambda path: load_settings(REGISTRY, env_file=path, environ={}),
        st.tuples(st.just(".env"), ENV_FILES),
    ),
    "scenarios": (
        read_scenario,
        contents(SCENARIO, (".yaml", ".json"))
        | contents(CONVERSATIONS, (".yaml", ".json"))
        | CASE_FILES,
    ),
    "traces": (read_traces, contents(STEP, (".json",)) | CASE_FILES),
}
"""Readers, and what they are given: keys and values, or a suffix and a content."""


def attempt(name: str, folder: Path, given: Any) -> None:
    """Let it be read; a refusal will do, if it fits a screen."""
    if isinstance(given, tuple):
        suffix, content = given
        given = folder / f"document{suffix}"
        given.write_bytes(content)
    try:
        READERS[name][0](given)
    except PagedCoreError as error:
        assert 0 < len(str(error)) < 6000


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@SHORT
def test_a_few_inputs(name: str, folder: Path, data: st.DataObject) -> None:
    attempt(name, folder, data.draw(READERS[name][1]))


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@LONG
def test_ten_thousand_inputs(name: str, folder: Path, data: st.DataObject) -> None:
    attempt(name, folder, data.draw(READERS[name][1]))
