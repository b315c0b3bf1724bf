"""Sampling parameters that a checkpoint recommends, by the rule of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paged_backends.checkpoint.json_file import damaged, read_json_object
from paged_core.errors import RequestError
from paged_core.log import get_logger
from paged_core.sampling_params import SamplingParams

_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "bad_words_ids": "bad_words_ids",
    "suppress_tokens": "bad_words_ids",
}
"""Names of ``generation_config.json``, and ours."""
_USUAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 50}
"""Values that older files list, and that say nothing."""
_NEUTRAL: Mapping[str, float | None] = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("guidance_scale", "typical_p", "top_h", "encoder_repetition_penalty"), 1),
    **dict.fromkeys(("begin_suppress_tokens", "sequence_bias", "watermarking_config")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "max_time", "dola_layers")),
    **dict.fromkeys(("exponential_decay_length_penalty", "constraints", "force_words_ids")),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length"), 0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "penalty_alpha", "token_healing"), 0),
}
"""Names of what ``generate`` of transformers obeys and no request has, and without which value it
has no effect, beside null and what is empty."""


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Return the parameters in a folder's ``generation_config.json``, or else ``config.json``.

    Where it restricts what is sampled and says no temperature, that is 1. Keys that would change
    results and are not obeyed are logged.

    Raises:
        CheckpointError: the file cannot be read, or a value is out of range.
    """
    path, of_model = folder / "generation_config.json", folder / "config.json"
    config = _of_model(read_json_object(of_model)) if of_model.is_file() else {}
    if path.is_file():
        stored = read_json_object(path)
    else:
        path = of_model
        stored = {name: value for name, value in config.items() if _USUAL.get(name) != value}
    vocab_size = config.get("vocab_size")
    ignored = [
        name
        for name, neutral in _NEUTRAL.items()
        if stored.get(name) not in (neutral, None, [], {})
    ]
    if ignored:
        get_logger().warning(
            "generation_config_ignored",
            keys=ignored,
            reason=f"{path} has them, and requests have no such parameters",
            remedy="delete them there, or set generation_config: none to take nothing of it",
        )
    found: dict[str, Any] = {}
    for name, own in _NAMES.items():
        value = stored.get(name)
        if value is None or value == []:
            continue
        if own == "bad_words_ids" and isinstance(value, list):
            value = _sequences(name, value, stored.get("eos_token_id"))
        given: dict[str, Any] = {"max_tokens": None, own: value}
        try:
            checked = SamplingParams(**given)
        except RequestError as error:
            said = str(error).replace(own, name)
            raise damaged(f"{path}: {said}; correct it, or set generation_config: none") from None
        value = getattr(checked, own)
        if own == "bad_words_ids" and isinstance(vocab_size, int):
            known = tuple(each for each in value if max(each) < vocab_size)
            if name == own and known != value:
                raise damaged(
                    f"{path}: {name} has a token id beyond the vocabulary of {vocab_size}; correct "
                    "it, or set generation_config: none"
                )
            value = known  # as transformers suppresses those that there are
        found[own] = (*found[own], *value) if own in found else value
    if found.keys() & {"top_p", "top_k", "min_p"}:
        found.setdefault("temperature", 1.0)
    return found


def _of_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model's configuration says, itself or in that of its text model."""
    nested = (config.get(name) for name in ("decoder", "generator", "text_config"))
    inner = next((each for each in nested if isinstance(each, Mapping)), {})
    return {**inner, **{name: value for name, value in config.items() if value is not None}}


def _sequences(name: str, value: list[Any], ends: object) -> list[Any]:
    """Return what may not be generated, less what has no effect in transformers either."""
    if name == "suppress_tokens":
        return [[token] for token in value if token != -1]
    alone = [[token] for token in (ends if isinstance(ends, list) else [ends])]
    return [tokens for tokens in value if tokens not in alone]
