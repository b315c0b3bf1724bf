"""Workloads by name, and by file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from paged_core.errors import SettingsError, did_you_mean
from paged_plugins.files import read_document
from paged_plugins.workloads.batch import NAMED
from paged_plugins.workloads.spec import WorkloadSpec, parse_spec

_YAML = (".yaml", ".yml")
_DEFINITIONS: dict[str, dict[str, Any]] = {
    "chat": {
        "about": "16 conversations that share a system prompt, under a flood of one-off prompts",
        "requests": 110,
        "arrivals": {"poisson": {"rate": 2}},
        "mix": [
            {
                "arrivals": {"interval": 0.05},
                "first": 16,
                "tenants": "chat",
                "lengths": {
                    "prompt": {"lognormal": {"median": 33, "sigma": 0.25, "min": 4, "max": 200}},
                    "output": {"lognormal": {"median": 17, "sigma": 0.25, "min": 4, "max": 160}},
                },
                "prefixes": {
                    "system": 256,
                    "conversation": {"turns": 4, "think": {"uniform": [0.6, 1]}},
                },
            },
            {
                "tenants": "one_off",
                "lengths": {
                    "prompt": {"lognormal": {"median": 160, "sigma": 0.4, "min": 32, "max": 700}},
                    "output": {"uniform": [4, 16]},
                },
            },
        ],
    },
    "sharegpt": {
        "about": "independent requests with the lengths of ShareGPT, four a second",
        "requests": 400,
        "arrivals": {"poisson": {"rate": 4}},
        "lengths": "sharegpt",
    },
    "alpaca": {
        "about": "short independent requests with the lengths of Alpaca, twenty a second",
        "requests": 400,
        "arrivals": {"poisson": {"rate": 20}},
        "lengths": "alpaca",
    },
    "bursts": {
        "about": "the requests of sharegpt in bursts",
        "requests": 400,
        "arrivals": {"gamma": {"rate": 4, "burstiness": 0.1}},
        "lengths": "sharegpt",
    },
    "assistants": {
        "about": "conversations under 20 system prompts, a few of which are popular",
        "requests": 400,
        "arrivals": {"poisson": {"rate": 1}},
        "lengths": {
            "prompt": {"lognormal": {"median": 60, "sigma": 1, "min": 4, "max": 500}},
            "output": {"lognormal": {"median": 150, "sigma": 0.8, "min": 4, "max": 500}},
        },
        "prefixes": {
            "system": {"tokens": {"uniform": [200, 800]}, "count": 20, "exponent": 1},
            "conversation": {"turns": {"uniform": [1, 8]}, "think": {"exponential": 5}},
        },
        "max_tokens": 4096,
    },
    "few_shot": {
        "about": "questions after five examples of a pool of eight",
        "requests": 400,
        "arrivals": {"poisson": {"rate": 8}},
        "lengths": {"prompt": {"uniform": [20, 80]}, "output": {"uniform": [8, 64]}},
        "prefixes": {
            "system": 64,
            "few_shot": {"examples": 5, "pool": 8, "tokens": {"uniform": [48, 96]}},
        },
    },
    "tree_of_thoughts": {
        "about": "trees of requests: each answer is continued three times, three answers deep",
        "requests": 390,
        "arrivals": {"poisson": {"rate": 0.5}},
        "lengths": {"prompt": {"uniform": [20, 60]}, "output": {"uniform": [40, 120]}},
        "prefixes": {"system": 200, "tree": {"depth": 3, "branching": 3}},
    },
    "tenants": {
        "about": "two tenants: many short requests of one, few long prompts of the other",
        "requests": 400,
        "arrivals": {"poisson": {"rate": 6}},
        "mix": [
            {"weight": 5, "tenants": "short", "lengths": "alpaca"},
            {
                "weight": 1,
                "tenants": "long",
                "lengths": {
                    "prompt": {
                        "lognormal": {"median": 2000, "sigma": 0.5, "min": 200, "max": 6000}
                    },
                    "output": {"uniform": [50, 150]},
                },
            },
        ],
    },
}


_DEFINITIONS["mooncake"] = {
    "about": "one in 28 conversations of an hour of Mooncake's, prompts and answers made shorter",
    "trace": str(files("paged_plugins.workloads.traces").joinpath("mooncake.jsonl")),
}
_DEFINITIONS |= {name: {"batch": name} for name in NAMED}


def names() -> list[str]:
    """Return the names of the built-in workloads."""
    return list(_DEFINITIONS)


def workload_spec(name_or_path: str) -> WorkloadSpec:
    """Return the specification of a built-in workload, or that of a file.

    Raises:
        SettingsError: there is no such workload or file, or the file cannot be read as one.
    """
    if name_or_path in _DEFINITIONS:
        values = {"name": name_or_path, **_DEFINITIONS[name_or_path]}
        return parse_spec(values, f"workload {name_or_path}")
    path = Path(name_or_path)
    if not path.exists():
        raise SettingsError(
            f"no workload is called {name_or_path!r:.80}, and there is no such file"
            f"{did_you_mean(name_or_path, _DEFINITIONS)}"
        )
    if path.is_dir():
        raise SettingsError(
            f"{name_or_path:.80} is a folder; give the name of a workload, or a file"
        )
    document = read_document(path) if path.suffix in _YAML else None
    values = document.content if document else {"trace": str(path)}
    if isinstance(values, dict):
        values = {"name": path.stem, **values}
    return parse_spec(values, str(path), document)
