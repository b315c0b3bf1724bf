"""What cannot be read is refused with a PagedCoreError, whatever it is; nothing else is raised."""

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

Content = tuple[str, bytes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


def attempt(read: Callable[[], object]) -> None:
    """Call it; a refusal will do, if it fits a screen."""
    try:
        read()
    except PagedCoreError as error:
        assert 0 < len(str(error)) < 6000


def written(folder: Path, content: Content) -> Path:
    path = folder / f"document{content[0]}"
    path.write_bytes(content[1])
    return path


def read_settings(folder: Path, content: Content) -> None:
    path = written(folder, content)
    attempt(lambda: load_settings(REGISTRY, config=path, environ={}))


def read_variables(name: str, value: str) -> None:
    attempt(lambda: load_settings(REGISTRY, environ={name: value}))


def read_keywords(key: str, value: Any) -> None:
    attempt(lambda: settings_class(REGISTRY)(**{key: value}))


def read_env_file(folder: Path, content: bytes) -> None:
    path = folder / "own.env"
    path.write_bytes(content)
    attempt(lambda: load_settings(REGISTRY, env_file=path, environ={}))


def read_scenario(folder: Path, content: Content) -> None:
    """Read it, and run the first steps."""

    def run() -> None:
        case = read_case(path)
        resolved = SettingsArgs(REGISTRY, {}).resolve(settings_layer(case.scenario))
        check_settings(case.scenario, resolved.settings)
        list(islice(replay(case.scenario, REGISTRY, Outcome(), resolved.settings), 40))

    path = written(folder, content)
    before = sorted(path.parent.iterdir())
    attempt(run)
    assert sorted(path.parent.iterdir()) == before


def read_trace(folder: Path, content: Content) -> None:
    path = written(folder, content)
    attempt(lambda: read_traces(path))


SETTINGS_FILES = contents(SETTINGS, (".yaml", ".json", ".toml"))
SCENARIO_FILES = st.one_of(
    contents(SCENARIO, (".yaml", ".json")), contents(CONVERSATIONS, (".yaml", ".json"))
)
CASE_FILES = contents(CASE, (".yaml", ".json"))
TRACE_FILES = contents(STEP, (".json",))
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


class TestShort:
    """A few inputs for each reader."""

    @given(content=SETTINGS_FILES)
    @SHORT
    def test_settings_files(self, folder: Path, content: Content) -> None:
        read_settings(folder, content)

    @given(name=VARIABLES, value=TEXTS)
    @SHORT
    def test_variables(self, name: str, value: str) -> None:
        read_variables(name, value)

    @given(key=KEYWORDS, value=values)
    @SHORT
    def test_keywords(self, key: str, value: Any) -> None:
        read_keywords(key, value)

    @given(content=ENV_FILES)
    @SHORT
    def test_env_files(self, folder: Path, content: bytes) -> None:
        read_env_file(folder, content)

    @given(content=st.one_of(SCENARIO_FILES, CASE_FILES))
    @SHORT
    def test_scenarios(self, folder: Path, content: Content) -> None:
        read_scenario(folder, content)

    @given(content=st.one_of(TRACE_FILES, CASE_FILES))
    @SHORT
    def test_traces(self, folder: Path, content: Content) -> None:
        read_trace(folder, content)


@pytest.mark.slow
class TestLong:
    """The same, 10,000 inputs for each."""

    @given(content=SETTINGS_FILES)
    @LONG
    def test_settings_files(self, folder: Path, content: Content) -> None:
        read_settings(folder, content)

    @given(name=VARIABLES, value=TEXTS)
    @LONG
    def test_variables(self, name: str, value: str) -> None:
        read_variables(name, value)

    @given(key=KEYWORDS, value=values)
    @LONG
    def test_keywords(self, key: str, value: Any) -> None:
        read_keywords(key, value)

    @given(content=ENV_FILES)
    @LONG
    def test_env_files(self, folder: Path, content: bytes) -> None:
        read_env_file(folder, content)

    @given(content=st.one_of(SCENARIO_FILES, CASE_FILES))
    @LONG
    def test_scenarios(self, folder: Path, content: Content) -> None:
        read_scenario(folder, content)

    @given(content=st.one_of(TRACE_FILES, CASE_FILES))
    @LONG
    def test_traces(self, folder: Path, content: Content) -> None:
        read_trace(folder, content)
