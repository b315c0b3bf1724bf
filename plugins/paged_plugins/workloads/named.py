"""Workloads by name, and by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paged_core.config.documents import parse_yaml, read_text
from paged_core.errors import SettingsError
from paged_plugins.workloads.spec import WorkloadSpec, parse_spec

_YAML = (".yaml", ".yml")
_DEFINITIONS: dict[str, dict[str, Any]] = {
    "chat": {
        "about": "conversations that share a system prompt, and one-off prompts among them",
        "requests": 160,
        "arrivals": {"poisson": {"rate": 0.8}},
        "lengths": {
            "prompt": {"lognormal": {"median": 40, "sigma": 0.8, "min": 4, "max": 200}},
            "output": {"lognormal": {"median": 40, "sigma": 0.7, "min": 4, "max": 160}},
        },
        "max_tokens": 1024,
        "mix": [
            {
                "weight": 2,
                "tenants": "chat",
                "prefixes": {
                    "system": 256,
                    "conversation": {"turns": {"uniform": [2, 8]}, "think": {"exponential": 4}},
                },
            },
            {
                "weight": 3,
                "tenants": "one_off",
                "lengths": {
                    "prompt": {"lognormal": {"median": 250, "sigma": 0.5, "min": 64, "max": 800}},
                    "output": {"uniform": [8, 32]},
                },
            },
        ],
    },
}


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
            f"no workload is called {name_or_path!r:.80}, and there is no such file; there are "
            f"{', '.join(_DEFINITIONS)}"
        )
    if path.suffix in _YAML:
        return _read(path)
    return parse_spec({"name": path.stem, "trace": str(path)}, str(path))


def _read(path: Path) -> WorkloadSpec:
    try:
        values, _ = parse_yaml(read_text(path))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        line = getattr(error, "line", None)
        where = f", line {line}," if line else ""
        raise SettingsError(f"{path}{where} cannot be parsed: {error}") from None
    if isinstance(values, dict):
        values = {"name": path.stem, **values}
    return parse_spec(values, str(path))
