"""Settings that change nothing in the runs of a study: who asks what they do must not be told that
they do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paged_core.errors import SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab.tasks.task import SIMULATED

OF_MODELS = frozenset(
    {
        *("model", "tokenizer", "device", "threads", "deterministic", "enforce_eager"),
        *("trust_remote_code", "allow_pickle", "attention", "runner"),
    }
)
"""Settings that a simulated engine does not read."""
OF_ROOFLINES = frozenset({"dtype", "kv_cache_dtype", "kv_cache_memory"})
"""Settings that it reads for the cost model ``roofline``, and not for ``linear``."""


def refuse_unused(
    keys: Iterable[str], arms: Sequence[EngineSettings], num_replicas: int | None
) -> None:
    """Refuse settings that no arm reads.

    Args:
        keys: of those that were given for these runs, dotted.
        arms: the settings of each.
        num_replicas: engines behind a router; ``None``: one alone.

    Raises:
        SettingsError: one is of no use; the message names it, and what to give instead.
    """
    given = dict.fromkeys(key.partition(".")[0] for key in keys)
    if any(dict(settings).get("router") is not None for settings in arms):
        given["router"] = None
    for key in given:
        reasons = [_unused(key, settings, num_replicas) for settings in arms]
        if all(reasons):
            raise SettingsError(f"{key} has no effect here: {reasons[0]}")


def _unused(key: str, settings: EngineSettings, num_replicas: int | None) -> str | None:
    """Return why a setting has no effect, and what to do; ``None``: it has one."""
    if key == "router" and (num_replicas or 1) < 2:
        return "one engine serves all requests; give --replicas 2 or more (in a file: `replicas`)"
    if settings.executor.name != SIMULATED:
        return "a model runs, in real time; leave it out" if key == "cost_model" else None
    cost_model = dict(settings)["cost_model"].name
    if key == "model":
        return "a simulation runs no model; its times are those of cost_model.model"
    if key in OF_MODELS:
        return "a simulation runs no model; leave it out, or run one (--real)"
    if key in OF_ROOFLINES and cost_model == "linear":
        return "cost_model linear does not ask for it; leave it out, or give --cost-model roofline"
    return None
