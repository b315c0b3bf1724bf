"""The settings of a replay."""

from __future__ import annotations

from paged_core.config.entry import Entry, Layer, Origin
from paged_core.errors import SettingsError
from paged_core.registry import Registry
from paged_core.settings import EngineSettings, settings_class
from paged_plugins.decisions.replay_request import whole_lengths
from paged_plugins.decisions.scenario import MAX_READS, Scenario

_EXECUTORS = ("memory", "simulated")


def settings_of(scenario: Scenario, registry: Registry) -> EngineSettings:
    """Return the engine settings of a scenario.

    Raises:
        SettingsError: they are invalid; the message names the scenario.
    """
    try:
        settings, _ = settings_class(registry).from_layers([settings_layer(scenario)])
    except SettingsError as error:
        raise SettingsError(f"scenario {scenario.name!r}: {error}") from None
    check_settings(scenario, settings)
    return settings


def settings_layer(scenario: Scenario, where: str = "") -> Layer:
    """Return what a scenario says about settings, to be laid under the other layers.

    Args:
        where: the file that it is written in.
    """
    values = {"executor": "memory", "max_model_len": 2048, **scenario.settings}
    return [Entry((key,), value, Origin("yaml", where)) for key, value in values.items()]


def check_settings(scenario: Scenario, settings: EngineSettings) -> None:
    """Compare the settings for a replay with what a replay can do.

    Raises:
        SettingsError: it cannot; the message names the scenario.
    """
    problem = None
    if settings.async_scheduling is True:
        problem = "a replay decides after each result; leave `async_scheduling` out"
    elif settings.executor.name not in _EXECUTORS:
        problem = "it runs on the executor 'memory' or 'simulated'; leave `executor` out"
    elif settings.executor.name == "simulated" and "seconds_per_step" in scenario.model_fields_set:
        problem = (
            "the cost model says how long a step of the executor 'simulated' takes; leave "
            "`seconds_per_step` out"
        )
    elif (num_reads := _num_reads(scenario, settings.max_model_len)) > MAX_READS:
        problem = (
            f"its steps would read {num_reads:,} tokens back, and a replay reads {MAX_READS:,} at "
            "most; shorten the outputs or lower max_model_len"
        )
    if problem:
        raise SettingsError(f"scenario {scenario.name!r}: {problem}")


def _num_reads(scenario: Scenario, max_model_len: int | None) -> int:
    """Tokens read back at most: each output token takes a step that reads its whole sequence."""
    total = 0
    for request, whole in whole_lengths(scenario.asked):
        length = min(whole + request.output, max_model_len or 2048)
        total += request.n * length * max(0, length - whole)
    return total
