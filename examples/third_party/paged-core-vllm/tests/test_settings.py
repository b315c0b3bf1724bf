"""Settings by layers, their origins, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paged_core.errors import SettingsError
from paged_core.settings.schema import load_settings as load_engine_settings

from paged_core_vllm.settings import load_settings


def test_layers_lie_above_each_other_option_by_option(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("queue_order: {name: fair, output_weight: 4}\nvictim: most_blocks\n")
    environ = {
        "PAGED_CORE_VLLM_CONFIG": str(config),
        "PAGED_CORE_VLLM__QUEUE_ORDER__INPUT_WEIGHT": "3",
        "PAGED_CORE_VLLM__EVICTOR": "arc",
        "PAGED_CORE_VLLM__RECORD": "traffic.jsonl",
    }
    loaded = load_settings({"evictor": {"name": "slru", "protected": 0.5}}, environ=environ)
    settings: Any = loaded.settings
    assert settings.queue_order.model_dump() == {
        "name": "fair",
        "input_weight": 3.0,
        "output_weight": 4.0,
        "weights": {},
        "max_idle": 4096,
    }
    assert (settings.victim.name, settings.evictor.protected) == ("most_blocks", 0.5)
    assert settings.record.path == Path("traffic.jsonl")
    assert str(loaded.origins["victim.name"]) == f"{config}, line 2"
    assert str(loaded.origins["evictor.name"]) == "--additional-config, 'paged_core'"


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_order_is_that_of_vllm_unless_one_is_named(policy: str) -> None:
    settings: Any = load_settings(policy=policy, environ={}).settings
    assert (settings.queue_order.name, settings.victim.name, settings.evictor.name) == (
        policy,
        "newest",
        "lru",
    )
    assert settings.record is None
    assert settings.strict is False


@pytest.mark.parametrize(
    ("environ", "argument", "words"),
    [
        ({"QUEUE_ORDER": "fare"}, None, ["no queue_order is called 'fare'", "'fair'", "__QUEUE"]),
        ({"QUEUE_ORDR": "fair"}, None, ["QUEUE_ORDR sets nothing", "QUEUE_ORDER"]),
        ({"VICTIM__MAX_PREEMPTION": "1"}, None, ["newest has no such option", "MAX_PREEMPTION"]),
        ({"STRICT": "perhaps"}, None, ["strict", "perhaps"]),
        ({}, {"preemption": "swap"}, ["preemption: swap", "vLLM has no swapping"]),
        ({"SCHEDULER": "prefill_or_decode"}, None, ["SCHEDULER", "prefill_or_decode"]),
        ({}, {"scheduler": {"max_num_seqs": 8}}, ["scheduler", "max_num_seqs"]),
        ({}, {"block_allocator": "contiguous"}, ["block_allocator", "hands out its blocks"]),
        ({}, {"num_blocks": 8}, ["num_blocks cannot be carried over", "its own arguments"]),
        ({}, ["arc"], ["a table of settings", "['arc']"]),
        ({}, {"record": {"paths": "x"}}, ["record.paths"]),
    ],
    ids=[
        *("component", "variable", "option", "bool", "swapping", "scheduler"),
        *("scheduler-option", "allocator", "engine-setting", "no-table", "record"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    environ: dict[str, str], argument: object, words: list[str]
) -> None:
    variables = {f"PAGED_CORE_VLLM__{key}": value for key, value in environ.items()}
    with pytest.raises(SettingsError) as raised:
        load_settings(argument, environ=variables)
    assert not [word for word in words if word not in str(raised.value)], str(raised.value)


def test_a_variable_that_looks_like_one_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"VLLM_EVICTOR sets nothing.*__EVICTOR"):
        load_settings(environ={"PAGED_CORE_VLLM_EVICTOR": "arc"})
    with pytest.raises(SettingsError, match=r"cannot read settings file nowhere\.yaml"):
        load_settings(environ={"PAGED_CORE_VLLM_CONFIG": "nowhere.yaml"})


def test_paged_core_itself_passes_over_these_variables() -> None:
    environ = {"PAGED_CORE_VLLM__EVICTOR": "arc", "PAGED_CORE_VLLM_CONFIG": "x"}
    settings: Any = load_engine_settings(environ=environ).settings
    assert settings.evictor.name == "lru"
