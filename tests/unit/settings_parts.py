"""A registry of made-up components, and settings resolved with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from paged_backends.attention.settings import TorchSettings
from paged_backends.executors.settings import LocalSettings
from paged_core import plugin
from paged_core.errors import SettingsError
from paged_core.plugins.component import Component, ComponentSettings, Profile
from paged_core.plugins.registry import Registry
from paged_core.settings.layers import Entry, Origin, Text
from paged_core.settings.schema import Resolved, load_settings, settings_class
from paged_policies.admission.always import AlwaysSettings
from paged_policies.allocators.hash_cached import HashCachedSettings
from paged_policies.evictors.lru import LruSettings
from paged_policies.length_predictors.none import NoneSettings
from paged_policies.orders.fcfs import FcfsSettings
from paged_policies.preemption.modes import RecomputeSettings
from paged_policies.victims.newest import NewestSettings


class BudgetSettings(ComponentSettings):
    name: Literal["token_budget"] = "token_budget"
    max_num_seqs: int = Field(256, gt=0)
    chunked_prefill: bool = True
    sizes: list[int] | None = None
    num_steps: Literal[1, 4] = 1


class PhasesSettings(ComponentSettings):
    name: Literal["prefill_or_decode"] = "prefill_or_decode"
    max_num_seqs: int = 8
    delay_factor: float = 0.0


class LogSettings(ComponentSettings):
    name: Literal["decision_log"] = "decision_log"
    path: str | None = None


class RoundRobinSettings(ComponentSettings):
    name: Literal["round_robin"] = "round_robin"
    weight: int = 1


PARTS: Mapping[str, tuple[type[ComponentSettings], ...]] = {
    "block_allocator": (HashCachedSettings,),
    "evictor": (LruSettings,),
    "queue_order": (FcfsSettings,),
    "scheduler": (BudgetSettings, PhasesSettings),
    "length_predictor": (NoneSettings,),
    "admission": (AlwaysSettings,),
    "victim": (NewestSettings,),
    "preemption": (RecomputeSettings,),
    "attention": (TorchSettings,),
    "runner": (),
    "executor": (LocalSettings,),
    "observers": (LogSettings,),
}
V0 = "watermark: 0.01\nscheduler: {name: prefill_or_decode, delay_factor: 0.5}\n"


def registry() -> Registry:
    parts = [Component(slot, made, "m:F") for slot, some in PARTS.items() for made in some]
    core = Registry(()).extended(plugin, plugin="core")
    return core.extended(*parts, Profile("v0", V0), plugin="fakes")


Settings = settings_class(registry())


def load(tmp_path: Path, yaml: str = "", cli: str = "", **environ: str) -> Resolved:
    """Resolve what a file, the command line and the environment say; dots in ``cli`` are paths."""
    file = tmp_path / "engine.yaml"
    file.write_text(yaml)
    words = [word.partition("=") for word in cli.split()]
    options = [
        Entry(tuple(key.split(".")), Text(text), Origin("cli", f"--{key}"))
        for key, _, text in words
    ]
    named = {f"PAGED_CORE_{key}": value for key, value in environ.items()}
    return load_settings(registry(), config=file, options=options, environ=named)


def refusal(tmp_path: Path, *args: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, *args, **environ)
    return str(caught.value).replace(str(tmp_path), "")
