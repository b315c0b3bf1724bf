"""Options of the parsers: they have none."""

from __future__ import annotations

from typing import Literal

from paged_core.plugins.component import ComponentSettings


class HermesSettings(ComponentSettings):
    """JSON between ``<tool_call>`` and ``</tool_call>``."""

    name: Literal["hermes"] = "hermes"


class Llama3JsonSettings(ComponentSettings):
    """An answer that is JSON from its first letter on."""

    name: Literal["llama3_json"] = "llama3_json"


class MistralSettings(ComponentSettings):
    """A list of JSON after ``[TOOL_CALLS]``."""

    name: Literal["mistral"] = "mistral"


class PythonicSettings(ComponentSettings):
    """An answer that is a list of calls as Python writes them."""

    name: Literal["pythonic"] = "pythonic"


class Qwen3Settings(ComponentSettings):
    """Thoughts between ``<think>`` and ``</think>``; the prompt may have the first mark."""

    name: Literal["qwen3"] = "qwen3"


class DeepseekR1Settings(ComponentSettings):
    """Thoughts from the beginning to ``</think>``, whether or not the first mark is there."""

    name: Literal["deepseek_r1"] = "deepseek_r1"


class NoReasoningSettings(ComponentSettings):
    """All text is the answer."""

    name: Literal["none"] = "none"
