"""Sampling parameters that a checkpoint recommends, by the rule of vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import damaged, read_json_object
from paged_core.errors import RequestError
from paged_core.sampling_params import SamplingParams

_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Names of ``generation_config.json``, and ours."""


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Return the parameters in a folder's ``generation_config.json``; none if there is no such.

    Where it restricts what is sampled and says no temperature, that is 1.

    Raises:
        CheckpointError: the file cannot be read, or a value is out of range.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return {}
    stored = read_json_object(path)
    found = {own: stored[name] for name, own in _NAMES.items() if stored.get(name) is not None}
    if found.keys() & {"top_p", "top_k", "min_p"}:
        found.setdefault("temperature", 1.0)
    try:
        SamplingParams(**found)
    except RequestError as error:
        raise damaged(f"{path}: {error}; correct it, or set generation_config: none") from None
    return found
