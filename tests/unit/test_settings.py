"""Settings as keywords: how they are written, what is refused, copies, the schema."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from paged_core import plugin
from paged_core.errors import PluginError, SettingsError
from paged_core.plugins.component import Component, Slot
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import EngineSettings, settings_class
from unit.settings_parts import (
    BudgetSettings,
    LogSettings,
    PhasesSettings,
    RoundRobinSettings,
    Settings,
    registry,
)

HOSTILE = {
    "NUM_BLOCKS": "7",
    "CONFIG": "/no/such/file",
    "NONSENSE": "1",
    "BLOCK_PLUGIN": "policies",
}
"""Variables that only a command reads."""


class TestKeywords:
    def test_a_component_is_a_name_a_table_or_an_object(self) -> None:
        assert Settings(scheduler="prefill_or_decode").scheduler == PhasesSettings()
        assert Settings(scheduler={"max_num_seqs": 4}).scheduler == BudgetSettings(max_num_seqs=4)
        chosen = PhasesSettings(delay_factor=1.0)
        assert Settings(scheduler=chosen).scheduler == chosen
        assert Settings(observers=["decision_log", LogSettings(path="x")]).observers == (
            LogSettings(),
            LogSettings(path="x"),
        )

    def test_a_profile_lies_beneath(self) -> None:
        settings = Settings(profile="v0", scheduler={"max_num_seqs": 4})
        assert settings.scheduler == PhasesSettings(max_num_seqs=4, delay_factor=0.5)
        assert settings.watermark == 0.01
        assert Settings(profile="v0", scheduler="token_budget").scheduler == BudgetSettings()

    def test_neither_files_nor_environment_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in HOSTILE.items():
            monkeypatch.setenv(f"PAGED_CORE_{name}", value)
        assert EngineSettings().num_blocks is None
        assert Settings().num_blocks is None

    def test_the_plain_class_knows_what_is_installed(self) -> None:
        settings = EngineSettings(scheduler="prefill_or_decode", num_blocks="64")
        assert settings.scheduler.name == "prefill_or_decode"
        assert settings.num_blocks == 64
        assert isinstance(settings, EngineSettings)
        assert settings == EngineSettings.model_validate(settings.model_dump())

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("2GiB", 2**31),
            ("500MB", 500_000_000),
            ("80%", 0.8),
            ("0.5", 0.5),
            (1, 1.0),
            (4096, 4096),
        ],
    )
    def test_memory_sizes(self, written: object, read: object) -> None:
        value = Settings(kv_cache_memory=written).kv_cache_memory
        assert (value, type(value)) == (read, type(read))

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (
                {"scheduler": "token_buget"},
                "scheduler: no scheduler is called 'token_buget'; did you mean 'token_budget'?",
            ),
            (
                {"scheduler": {"max_num_seq": 3}},
                "scheduler.max_num_seq: token_budget has no such option;"
                " did you mean 'max_num_seqs'?",
            ),
            ({"blocksize": 3}, "blocksize: no such setting; did you mean 'block_size'?"),
            (
                {"max_num_seqs": 3},
                "max_num_seqs: no such setting; did you mean 'scheduler.max_num_seqs'?",
            ),
            ({"profile": "v00"}, "profile: no profile is called 'v00'; did you mean 'v0'?"),
            (
                {"observers": [{"name": "decision_log", "pat": 1}]},
                "observers.0.pat: decision_log has no such option; did you mean 'path'?",
            ),
            (
                {"scheduler": {"name": "token_budget", "delay_factor": 1}},
                "scheduler.delay_factor: token_budget has no such option;"
                " to set it, name prefill_or_decode",
            ),
            ({"scheduler": 5}, "scheduler: give the name of a component, or a table"),
            (
                {"kv_cache_memory": "much"},
                "kv_cache_memory: give bytes, such as 2GiB or 500MB, or a fraction, such as 0.5",
            ),
            ({"kv_cache_memory": 10**400}, "kv_cache_memory: there is no memory of 2**63 bytes"),
            ({"kv_cache_memory": float("nan")}, "kv_cache_memory: memory must be more than 0"),
            (
                {"scheduler": {"max_num_seqs": 2**63}},
                "scheduler.max_num_seqs: the number is too large",
            ),
            ({"model": "a\0b"}, "model: text cannot contain the character NUL"),
            (
                {"observers": "[" * 5000},
                f"observers: not valid JSON: nested deeper than 64 levels, in '{'[' * 80}'",
            ),
            (
                {"tokenizer": "\ud800"},
                "tokenizer: text contains bytes or escapes that are not Unicode",
            ),
            ({"watermark": float("nan")}, "watermark: input should be a finite number, not nan"),
            (
                {"kv_cache_memory": 1.5},
                "kv_cache_memory: a fraction of the memory is at most 1; above that, give whole "
                "bytes",
            ),
            (
                {"device": "potato"},
                "device: no device is called 'potato'; give auto, cpu, cuda, cuda:1 or mps",
            ),
            ({"block_size": True}, "block_size: give a number, not true"),
            ({"threads": 1025}, "threads: input should be less than or equal to 1024, not 1025"),
            ({"model": {"name": "x"}}, "model: input should be a valid string, not {'name': 'x'}"),
        ],
    )
    def test_mistakes(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingsError) as caught:
            Settings(**values)
        assert str(caught.value) == message

    def test_every_mistake_is_named(self) -> None:
        with pytest.raises(SettingsError) as caught:
            Settings(num_blocks=0, watermark=2)
        assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
            "num_blocks",
            "watermark",
        ]


class TestSlotsOfPlugins:
    def test_a_new_slot_gets_a_setting(self) -> None:
        more = registry().extended(
            Slot("router", "m:Router", summary="where a request goes"),
            Component("router", RoundRobinSettings, "m:RoundRobin"),
        )
        made: Any = settings_class(more)
        assert made().router is None
        assert made(router={"name": "round_robin", "weight": 3}).router.weight == 3
        with pytest.raises(SettingsError, match="router: the table names no component"):
            made(router={"weight": 3})
        copy = pickle.loads(pickle.dumps(made(router="round_robin")))
        assert copy.router == RoundRobinSettings()
        assert copy.model_dump() == made(router="round_robin").model_dump()

    def test_a_slot_cannot_take_the_key_of_a_setting(self) -> None:
        with pytest.raises(PluginError, match="slot 'seed', which is a setting already"):
            settings_class(registry().extended(Slot("seed", "m:Seed")))

    def test_a_slot_without_its_default_says_so(self) -> None:
        made = settings_class(Registry(()).extended(plugin, plugin="core"))
        with pytest.raises(SettingsError, match="no scheduler is called 'token_budget'; there are"):
            made()


class TestPickling:
    def test_a_copy_is_equal_whatever_the_environment_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = Settings(profile="v0", observers=["decision_log"], num_blocks=3)
        sent = pickle.dumps(settings)
        for name, value in HOSTILE.items():
            monkeypatch.setenv(f"PAGED_CORE_{name}", value)
        copy = pickle.loads(sent)
        assert copy == settings
        assert hash(copy) == hash(settings)
        assert copy.model_dump() == settings.model_dump()
        assert copy.scheduler == PhasesSettings(delay_factor=0.5)
        assert pickle.loads(pickle.dumps(copy)) == settings


def test_the_schema_allows_shorthand_and_tables() -> None:
    schema = Settings.model_json_schema()
    assert "required" not in schema
    shorthand, table = schema["properties"]["scheduler"]["anyOf"]
    assert shorthand["enum"] == ["token_budget", "prefill_or_decode"]
    assert table["discriminator"]["propertyName"] == "name"
    assert schema["properties"]["scheduler"]["default"] == "token_budget"
    assert schema["properties"]["attention"]["anyOf"][0]["enum"] == ["auto", "torch"]


def test_seconds_that_no_clock_counts_are_refused() -> None:
    executor = {"name": "process", "heartbeat_timeout": 1e300}
    with pytest.raises(SettingsError, match="heartbeat_timeout: input should be less"):
        EngineSettings(executor=executor)
