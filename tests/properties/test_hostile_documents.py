"""Documents that cannot be read are refused with a PagedCoreError; nothing else is raised."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from paged_core.cli.options import SettingsArgs
from paged_core.errors import PagedCoreError
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings, load_settings, settings_class
from paged_plugins.decisions.replay import check_settings, replay, settings_layer
from paged_plugins.decisions.replay_run import Outcome
from paged_plugins.decisions.scenario import read_case
from paged_plugins.decisions.trace import KEYS, TIMES, read_traces
from properties.profile import Length, lengths

pytestmark = pytest.mark.heavy

REGISTRY = Registry.discover()
HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    999_999,
    2**31,
    2**63,
    10**12,
    10**99,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "auto",
    "null",
    "80%",
    "9" * 400,
    "9" * 5000,
    "0x_",
    "2024-13-45",
    "5:3",
    "0:40 7:9",
    "x\0y",
    "\ud800",
    "[" * 5000,
    '{"name":',
    [],
    [[1]],
    {},
    {"name": "nothing"},
    {1: 2},
]
"""Values that are wrong in most places, and right in some."""

FRAGMENTS = [
    *("[", "]", "{", "}", ":", ",", "- ", "? ", "\n", "\t", "  ", '"', "'", "#", "---\n", "%", "@"),
    *("&a ", "*a", "<<: *a", "<<: ", "!!int ", "!!float ''", "!!timestamp x", "!x ", "!!binary é"),
    *("0x_", "0b", "1:59", ".inf", ".nan", "1e999", "-", "_", "\\ud800", "\\0", "\0", "\ufeff"),
    *("[" * 200, "- " * 200, "{a: " * 100, "a." * 200, "9" * 5000, "&a [" * 70, "*a, " * 500),
]
"""Values over which parsers stumble."""

values = st.one_of(st.sampled_from(HOSTILE), st.integers(), st.floats(), st.text(max_size=8))


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """Return a copy in which up to four values are replaced, removed or doubled."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, 4))):
        above: Any = None
        key: Any = None
        inside = document
        while isinstance(inside, (dict, list)) and inside:
            if above is not None and draw(st.booleans()):
                break
            above = inside
            keys = list(inside) if isinstance(inside, dict) else range(len(inside))
            key = draw(st.sampled_from(keys))
            inside = above[key]
        if above is None:
            continue
        action = draw(st.sampled_from(["replace", "replace", "remove", "double"]))
        if action == "replace":
            above[key] = copy.deepcopy(draw(values))
        elif action == "remove":
            del above[key]
        elif isinstance(above, list):
            above.append(copy.deepcopy(inside))
        else:
            above[draw(st.text(max_size=5))] = copy.deepcopy(inside)
    return document


@st.composite
def contents(draw: st.DrawFn, valid: Any, formats: tuple[str, ...]) -> tuple[str, bytes]:
    """Return the suffix of a file and its content, in one of the formats."""
    kind = draw(st.sampled_from(formats))
    document = draw(changed(valid))
    try:
        text = json.dumps(document) if kind == ".json" else yaml.safe_dump(document)
    except (ValueError, TypeError):  # numbers that cannot be written
        text = repr(document)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        text = text[:start] + draw(st.sampled_from(FRAGMENTS)) + text[end:]
    content = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        content = draw(st.binary(max_size=40)) + content
    return kind, content


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
@lengths(100, 10_000)
def test_what_cannot_be_read_is_refused(name: str, length: Length, folder: Path) -> None:
    length.check(lambda given: attempt(name, folder, given), READERS[name][1])
