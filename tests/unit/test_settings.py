"""Settings: how they are written, which layer wins, and what is said about mistakes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paged_core import plugin
from paged_core.component import AutoSettings, Component, ComponentSettings, Profile, Slot
from paged_core.config.entry import Entry, Origin, Text
from paged_core.errors import PluginError, SettingsError
from paged_core.registry import Registry
from paged_core.settings import EngineSettings, Resolved, load_settings, settings_class


class BudgetSettings(ComponentSettings):
    name: Literal["token_budget"] = "token_budget"
    max_num_seqs: int = Field(256, gt=0)
    chunked_prefill: bool = True
    sizes: list[int] | None = None


class PhasesSettings(ComponentSettings):
    name: Literal["prefill_or_decode"] = "prefill_or_decode"
    max_num_seqs: int = 8
    delay_factor: float = 0.0


class LogSettings(ComponentSettings):
    name: Literal["decision_log"] = "decision_log"
    path: str | None = None


class LruSettings(ComponentSettings):
    name: Literal["lru"] = "lru"


class HashCachedSettings(ComponentSettings):
    name: Literal["hash_cached"] = "hash_cached"


class FcfsSettings(ComponentSettings):
    name: Literal["fcfs"] = "fcfs"


class NewestSettings(ComponentSettings):
    name: Literal["newest"] = "newest"


class RecomputeSettings(ComponentSettings):
    name: Literal["recompute"] = "recompute"


class TorchSettings(ComponentSettings):
    name: Literal["torch"] = "torch"


class LocalSettings(ComponentSettings):
    name: Literal["local"] = "local"


class RoundRobinSettings(ComponentSettings):
    name: Literal["round_robin"] = "round_robin"
    weight: int = 1


PARTS: Mapping[str, tuple[type[ComponentSettings], ...]] = {
    "block_allocator": (HashCachedSettings,),
    "evictor": (LruSettings,),
    "queue_order": (FcfsSettings,),
    "scheduler": (BudgetSettings, PhasesSettings),
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


class TestKeywords:
    def test_defaults(self) -> None:
        settings = Settings()
        assert settings.scheduler == BudgetSettings()
        assert settings.attention == AutoSettings()
        assert (settings.model, settings.block_size, settings.observers) == ("demo", 16, ())

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
        monkeypatch.setenv("PAGED_CORE_NUM_BLOCKS", "3")
        monkeypatch.setenv("PAGED_CORE_CONFIG", "/no/such/file")
        monkeypatch.setenv("PAGED_CORE_NONSENSE", "1")
        assert EngineSettings().num_blocks is None
        assert Settings().num_blocks is None

    def test_the_plain_class_knows_what_is_installed(self) -> None:
        settings = EngineSettings(scheduler="prefill_or_decode", num_blocks="64")
        assert settings.scheduler.name == "prefill_or_decode"
        assert settings.num_blocks == 64
        assert isinstance(settings, EngineSettings)
        assert settings == EngineSettings.model_validate(settings.model_dump())

    def test_settings_are_frozen(self) -> None:
        with pytest.raises(ValueError, match="frozen"):
            Settings().block_size = 4  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("2GiB", 2**31),
            ("500MB", 500_000_000),
            ("1.5 kib", 1536),
            ("80%", 0.8),
            ("0.5", 0.5),
            (0.5, 0.5),
            (1, 1.0),
            (4096, 4096),
            ("4096", 4096),
        ],
    )
    def test_memory_sizes(self, written: object, read: object) -> None:
        value = Settings(kv_cache_memory=written).kv_cache_memory
        assert (value, type(value)) == (read, type(read))

    @given(st.integers(2, 2**50))
    def test_memory_sizes_survive_writing(self, size: int) -> None:
        assert Settings(kv_cache_memory=str(size)).kv_cache_memory == size

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
            (
                {"scheduler": {"max_num_seqs": 0}},
                "scheduler.max_num_seqs: input should be greater than 0, not 0",
            ),
            ({"blocksize": 3}, "blocksize: no such setting; did you mean 'block_size'?"),
            (
                {"max_num_seqs": 3},
                "max_num_seqs: no such setting; did you mean 'scheduler.max_num_seqs'?",
            ),
            ({"profile": "v00"}, "profile: no profile is called 'v00'; did you mean 'v0'?"),
            (
                {"observers": ["decision_lo"]},
                "observers.0: no observer is called 'decision_lo'; did you mean 'decision_log'?",
            ),
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
            ({"scheduler": None}, "scheduler: give the name of a component, or a table"),
            (
                {"kv_cache_memory": "much"},
                "kv_cache_memory: give bytes, such as 2GiB or 500MB, or a fraction, such as 0.5",
            ),
            ({"kv_cache_memory": 0}, "kv_cache_memory: memory must be more than 0"),
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
            (
                {"scheduler": {"max_num_seqs": True}},
                "scheduler.max_num_seqs: give a number, not true",
            ),
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


class TestLayers:
    def test_each_layer_lies_over_the_next(self, tmp_path: Path) -> None:
        yaml = "profile: v0\nblock_size: 1\nnum_blocks: 1\nthreads: 1\n"
        found = load(tmp_path, yaml, "threads=3", NUM_BLOCKS="2", THREADS="2")
        settings = found.settings
        assert (settings.watermark, settings.block_size) == (0.01, 1)
        assert (settings.num_blocks, settings.threads) == (2, 3)
        layers = {key: (origin.layer, origin.where) for key, origin in found.origins.items()}
        assert layers["watermark"] == ("profile", "v0")
        assert layers["block_size"] == ("yaml", str(tmp_path / "engine.yaml"))
        assert layers["num_blocks"] == ("env", "PAGED_CORE_NUM_BLOCKS")
        assert layers["threads"] == ("cli", "--threads")
        assert layers["seed"] == ("default", "paged_core")
        assert layers["scheduler.max_num_seqs"] == ("default", "scheduler.prefill_or_decode")
        assert layers["observers"] == ("default", "paged_core")

    @given(st.lists(st.sampled_from(["profile", "yaml", "env", "cli"]), unique=True))
    def test_the_highest_layer_wins(self, given_in: list[str]) -> None:
        order = ("profile", "yaml", "env", "cli")
        layers = [
            [Entry(("num_blocks",), order.index(name) + 1, Origin(name, "x"))]  # type: ignore[arg-type]
            for name in order
            if name in given_in
        ]
        settings, origins = Settings.from_layers(layers)
        highest = max(given_in, key=order.index, default="default")
        assert origins["num_blocks"].layer == highest
        assert settings.num_blocks == (order.index(highest) + 1 if given_in else None)

    def test_tables_merge_option_by_option(self, tmp_path: Path) -> None:
        yaml = "scheduler: {name: prefill_or_decode, delay_factor: 2}"
        found = load(tmp_path, yaml, SCHEDULER__MAX_NUM_SEQS="64")
        assert found.settings.scheduler == PhasesSettings(max_num_seqs=64, delay_factor=2)
        assert found.origins["scheduler.delay_factor"].layer == "yaml"
        assert found.origins["scheduler.max_num_seqs"].where == "PAGED_CORE_SCHEDULER__MAX_NUM_SEQS"

    @pytest.mark.parametrize("higher", ["scheduler=token_budget", "scheduler.name=token_budget"])
    def test_another_component_drops_the_table_beneath(self, tmp_path: Path, higher: str) -> None:
        yaml = "scheduler: {name: prefill_or_decode, delay_factor: 2, max_num_seqs: 3}"
        assert load(tmp_path, yaml, higher).settings.scheduler == BudgetSettings()
        implicit = load(tmp_path, "scheduler: {max_num_seqs: 3}", "scheduler=prefill_or_decode")
        assert implicit.settings.scheduler == PhasesSettings()

    def test_naming_the_same_component_keeps_it(self, tmp_path: Path) -> None:
        yaml = "scheduler: {max_num_seqs: 3}"
        kept = load(tmp_path, yaml, "scheduler=token_budget").settings.scheduler
        assert kept == BudgetSettings(max_num_seqs=3)

    def test_shorthand_and_options_of_one_layer_are_merged(self, tmp_path: Path) -> None:
        """A variable for the whole table once hid those for its options."""
        want = PhasesSettings(delay_factor=0.5)
        environ = {"SCHEDULER": "prefill_or_decode", "SCHEDULER__DELAY_FACTOR": "0.5"}
        assert load(tmp_path, **environ).settings.scheduler == want
        cli = "scheduler.delay_factor=0.5 scheduler=prefill_or_decode"
        assert load(tmp_path, cli=cli).settings.scheduler == want

    def test_a_layer_that_contradicts_itself_is_refused(self, tmp_path: Path) -> None:
        environ = {"SCHEDULER": "prefill_or_decode", "SCHEDULER__NAME": "token_budget"}
        assert refusal(tmp_path, **environ) == (
            "scheduler.name: PAGED_CORE_SCHEDULER says 'prefill_or_decode',"
            " PAGED_CORE_SCHEDULER__NAME says 'token_budget'; keep one of them"
        )

    def test_shorthand_is_not_merged_as_a_table(self, tmp_path: Path) -> None:
        """Shorthand over a table, and a table over shorthand: either used to be taken apart."""
        file = "scheduler: prefill_or_decode"
        found = load(tmp_path, file, "scheduler.delay_factor=1").settings.scheduler
        assert found == PhasesSettings(delay_factor=1)
        file = "scheduler: {name: token_budget, chunked_prefill: false}"
        found = load(tmp_path, file, SCHEDULER="prefill_or_decode").settings.scheduler
        assert found == PhasesSettings()

    def test_text_is_read_by_the_type_of_the_setting(self, tmp_path: Path) -> None:
        found = load(
            tmp_path,
            "num_blocks: 4\ntokenizer: x",
            'observers=["decision_log",{"name":"decision_log","path":"p"}] scheduler.sizes=[1,2]',
            NUM_BLOCKS="null",
            TOKENIZER="None",
            DETERMINISTIC="yes",
            SEED="7",
            MODEL="null",
            KV_CACHE_MEMORY="2GiB",
        ).settings
        assert (found.num_blocks, found.tokenizer, found.deterministic) == (None, None, True)
        assert (found.seed, found.model, found.kv_cache_memory) == (7, "null", 2**31)
        assert found.observers == (LogSettings(), LogSettings(path="p"))
        assert found.scheduler == BudgetSettings(sizes=[1, 2])
        table = '{"name":"prefill_or_decode","delay_factor":1}'
        assert load(tmp_path, SCHEDULER=table).settings.scheduler == PhasesSettings(delay_factor=1)

    @pytest.mark.parametrize(
        ("yaml", "chosen"),
        [
            ("", BudgetSettings(chunked_prefill=False)),
            ("scheduler: token_budget", BudgetSettings(chunked_prefill=False)),
            ("scheduler: {max_num_seqs: 3}", BudgetSettings(chunked_prefill=False, max_num_seqs=3)),
            ("scheduler: {}", BudgetSettings(chunked_prefill=False)),
        ],
    )
    def test_a_variable_for_an_option_is_for_the_component_that_is_chosen_below(
        self, tmp_path: Path, yaml: str, chosen: BudgetSettings
    ) -> None:
        found = load(tmp_path, yaml, SCHEDULER__CHUNKED_PREFILL="false")
        assert found.settings.scheduler == chosen
        assert load(tmp_path, yaml, "scheduler.chunked_prefill=no").settings == found.settings
        under_profile = load(tmp_path, "profile: v0", SCHEDULER__DELAY_FACTOR="2").settings
        assert under_profile.scheduler == PhasesSettings(delay_factor=2)

    def test_a_variable_for_an_option_of_another_component_names_the_remedy(
        self, tmp_path: Path
    ) -> None:
        assert refusal(tmp_path, SCHEDULER__DELAY_FACTOR="2") == (
            "scheduler.delay_factor: token_budget has no such option; to set it, name"
            " prefill_or_decode (PAGED_CORE_SCHEDULER__DELAY_FACTOR)"
        )
        assert refusal(tmp_path, ATTENTION__SPEED="2").startswith(
            "attention.speed: auto has no such option"
        )

    def test_an_option_of_a_list_is_refused_with_the_variable(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, OBSERVERS__PATH="x") == (
            "observers: input should be a valid list, not {'path': 'x'}; write it as JSON"
            " (PAGED_CORE_OBSERVERS__PATH)"
        )

    def test_profiles_are_chosen_by_any_layer(self, tmp_path: Path) -> None:
        for arguments in (("profile: v0",), ("", "profile=v0")):
            assert load(tmp_path, *arguments).settings.scheduler.name == "prefill_or_decode"
        assert load(tmp_path, PROFILE="v0").settings.profile == "v0"
        assert load(tmp_path, "profile: v0", PROFILE="none").settings.watermark == 0

    def test_overrides_lie_over_all(self) -> None:
        environ = {"PAGED_CORE_SEED": "1"}
        found = load_settings(registry(), environ=environ, overrides={"seed": 2})
        assert (found.settings.seed, found.origins["seed"].layer) == (2, "python")


class TestFiles:
    """TOML, a .env file, a directory of secrets; all are read only where they are named."""

    def test_toml(self, tmp_path: Path) -> None:
        file = tmp_path / "engine.toml"
        file.write_text(
            'num_blocks = 3\nkv_cache_memory = "2GiB"\nscheduler = {name = "prefill_or_decode"}\n'
            '[[observers]]\nname = "decision_log"\n'
        )
        found = load_settings(registry(), config=file, environ={})
        assert (found.settings.num_blocks, found.settings.kv_cache_memory) == (3, 2**31)
        assert found.settings.scheduler == PhasesSettings()
        assert found.settings.observers == (LogSettings(),)
        assert found.origins["num_blocks"] == Origin("yaml", str(file))

    @pytest.mark.parametrize(
        ("toml", "message"),
        [
            ("seed = x", r"cannot read settings file \S+: Invalid value \(at line 1"),
            ("seed = 1\nseed = 2\n", r"Cannot overwrite a value \(at line 2"),
            ("sead = 1", r"sead: no such setting; did you mean 'seed'\? \(\S+engine.toml\)"),
        ],
    )
    def test_broken_toml(self, tmp_path: Path, toml: str, message: str) -> None:
        file = tmp_path / "engine.toml"
        file.write_text(toml)
        with pytest.raises(SettingsError, match=message):
            load_settings(registry(), config=file, environ={})

    def env_file(self, tmp_path: Path, content: str, **environ: str) -> Resolved:
        file = tmp_path / ".env"
        file.write_text(content)
        return load_settings(registry(), env_file=file, environ=environ)

    def test_an_env_file_lies_under_the_environment_and_over_the_settings_file(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "engine.yaml").write_text("seed: 1\nthreads: 1\nblock_size: 1\n")
        (tmp_path / "own.env").write_text("PAGED_CORE_SEED=2\nPAGED_CORE_THREADS=2\n")
        environ = {
            "PAGED_CORE_CONFIG": str(tmp_path / "engine.yaml"),
            "PAGED_CORE_ENV_FILE": str(tmp_path / "own.env"),
            "PAGED_CORE_SEED": "3",
        }
        found = load_settings(registry(), environ=environ)
        settings = found.settings
        assert (settings.seed, settings.threads, settings.block_size) == (3, 2, 1)
        assert found.origins["threads"] == Origin("env", str(tmp_path / "own.env"), 2)

    def test_an_env_file_is_read_as_shells_write_it(self, tmp_path: Path) -> None:
        content = (
            "# ours\n\n\nexport PAGED_CORE_MODEL='a b'  # a folder\nDATABASE=x\nBARE\n\n"
            'PAGED_CORE_SCHEDULER="prefill_or_decode"\nPAGED_CORE_SCHEDULER__DELAY_FACTOR=2\n'
            'PAGED_CORE_THREADS=\nPAGED_CORE_OBSERVERS=["decision_log"]\n'
        )
        found = self.env_file(tmp_path, content)
        assert found.settings.model == "a b"
        assert found.settings.scheduler == PhasesSettings(delay_factor=2)
        assert found.settings.observers == (LogSettings(),)
        lines = [found.origins[key].line for key in ("model", "scheduler.name", "observers")]
        assert lines == [4, 8, 11]
        assert pickle.loads(pickle.dumps(found.settings)) == found.settings
        assert pickle.loads(pickle.dumps(found.origins)) == found.origins

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (
                "\nPAGED_CORE_SEEED=1",
                "PAGED_CORE_SEEED sets nothing; did you mean 'PAGED_CORE_SEED'",
            ),
            ("PAGED_CORE_SEED", r"\.env, line 1: write NAME=value"),
            ("A=1\nPAGED_CORE_SEED='1", r"\.env, line 2: write NAME=value, with closed quotes"),
            ("PAGED_CORE_SEED=x", r"seed: input should be .*\.env, line 1\)"),
            ("PAGED_CORE_CONFIG=x", r"PAGED_CORE_CONFIG is read from the environment only; set it"),
        ],
    )
    def test_mistakes_in_an_env_file(self, tmp_path: Path, content: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            self.env_file(tmp_path, content)

    def test_secrets(self, tmp_path: Path) -> None:
        (tmp_path / "paged_core_seed").write_text("7\n")
        (tmp_path / "PAGED_CORE_SCHEDULER__MAX_NUM_SEQS").write_text("9")
        (tmp_path / "database_password").write_text("x")
        (tmp_path / "folder").mkdir()
        found = load_settings(registry(), environ={"PAGED_CORE_SECRETS_DIR": str(tmp_path)})
        assert found.settings == Settings(seed=7, scheduler={"max_num_seqs": 9})
        assert found.origins["seed"] == Origin("env", str(tmp_path / "paged_core_seed"))
        above = {"PAGED_CORE_SEED": "8"}
        assert load_settings(registry(), secrets_dir=tmp_path, environ=above).settings.seed == 8
        (tmp_path / "paged_core_sead").write_text("1")
        with pytest.raises(SettingsError, match="PAGED_CORE_SEAD sets nothing; did you mean"):
            load_settings(registry(), secrets_dir=tmp_path, environ={})

    @pytest.mark.parametrize("variable", ["ENV_FILE", "SECRETS_DIR"])
    def test_what_cannot_be_read_is_refused(self, tmp_path: Path, variable: str) -> None:
        """The sources of pydantic-settings pass over a file that does not exist."""
        missing = tmp_path / "missing"
        with pytest.raises(SettingsError, match=rf"missing: No such .* \(PAGED_CORE_{variable}\)"):
            load_settings(registry(), environ={f"PAGED_CORE_{variable}": str(missing)})

    def test_the_working_directory_is_not_looked_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".env").write_text("PAGED_CORE_SEED=2\n")
        monkeypatch.chdir(tmp_path)
        assert load_settings(registry(), environ={}).settings == Settings()

    @pytest.mark.skipif(os.name == "nt", reason="pipes have no path there")
    def test_a_pipe_will_do(self) -> None:
        read_end, write_end = os.pipe()
        os.write(write_end, b"seed: 4\n")
        os.close(write_end)
        try:
            found = load_settings(registry(), config=f"/dev/fd/{read_end}", environ={})
        finally:
            os.close(read_end)
        assert found.settings.seed == 4


class Application(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="MYAPP_", env_nested_delimiter="__")

    port: int = 8000
    engine: EngineSettings = Field(default_factory=EngineSettings)


class TestInsideOtherSettings:
    def application(self, monkeypatch: pytest.MonkeyPatch, **environ: str) -> Application:
        monkeypatch.setenv("PAGED_CORE_NUM_BLOCKS", "3")  # not ours to read here
        for name, value in environ.items():
            monkeypatch.setenv(f"MYAPP_{name}", value)
        return Application()

    def test_nested_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        application = self.application(
            monkeypatch,
            PORT="80",
            ENGINE__NUM_BLOCKS="64",
            ENGINE__SCHEDULER__MAX_NUM_SEQS="8",
            ENGINE__EVICTOR="arc",
            ENGINE__QUEUE_ORDER='{"name": "fair", "input_weight": 2}',
            ENGINE__OBSERVERS='["decision_log"]',
            ENGINE__PROFILE="vllm-v1",
        )
        assert application.port == 80
        assert application.engine == EngineSettings(
            profile="vllm-v1",
            num_blocks=64,
            scheduler={"max_num_seqs": 8},
            evictor="arc",
            queue_order={"name": "fair", "input_weight": 2},
            observers=["decision_log"],
        )
        copy = pickle.loads(pickle.dumps(application.engine))
        assert copy == application.engine
        assert Application(**application.model_dump()) == application

    def test_an_option_that_is_a_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environ = {"QUEUE_ORDER__NAME": "fair", "QUEUE_ORDER__WEIGHTS": '{"a": 2}'}
        named = {f"ENGINE__{key}": value for key, value in environ.items()}
        engine = self.application(monkeypatch, **named).engine
        assert engine == EngineSettings(queue_order={"name": "fair", "weights": {"a": 2}})

    def test_defaults(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.application(monkeypatch).engine == EngineSettings()

    def test_mistakes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match="did you mean 'num_blocks'"):
            self.application(monkeypatch, ENGINE__NUM_BLOK="64")


class TestMistakesOfLayers:
    def test_unknown_variable(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, NUM_BLOK="1") == (
            "PAGED_CORE_NUM_BLOK sets nothing; did you mean 'PAGED_CORE_NUM_BLOCKS'?"
        )
        assert "did you mean 'PAGED_CORE_CONFIG'" in refusal(tmp_path, CONFIG__X="1")

    def test_reserved_and_empty_variables(self, tmp_path: Path) -> None:
        found = load(tmp_path, CACHE_DIR="/x", LOG_LEVEL="debug", BLOCK_PLUGIN="", NUM_BLOCKS="")
        assert found.settings == Settings()

    def test_the_message_says_where(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, "seed: 1\nscheduler:\n  max_num_seqs: many\n") == (
            "scheduler.max_num_seqs: input should be a valid integer, unable to parse string as an"
            " integer, not 'many' (/engine.yaml, line 3)"
        )
        assert refusal(tmp_path, "", "scheduler.name=token_buget") == (
            "scheduler: no scheduler is called 'token_buget'; did you mean 'token_budget'?"
            " (--scheduler.name)"
        )
        assert refusal(tmp_path, MODEL__NAME="x").endswith("(PAGED_CORE_MODEL__NAME)")
        assert refusal(tmp_path, OBSERVERS="decision_log") == (
            "observers: input should be a valid list, not 'decision_log'; write it as JSON"
            " (PAGED_CORE_OBSERVERS)"
        )
        assert "not valid JSON" in refusal(tmp_path, OBSERVERS='["decision_log"')

    @pytest.mark.parametrize(
        ("yaml", "message"),
        [
            ("- 1", "/engine.yaml, line 1: settings must be a mapping of keys to values"),
            ("a: 1\nb: [1,\n", "/engine.yaml, line 3: not valid YAML: "),
            ("seed: 1\nseed: 2", "/engine.yaml, line 2: the key 'seed' is given twice"),
            ("1: 2", "/engine.yaml, line 1: the key is not text; quote it"),
            ("a: 1\n---\nb: 2", "/engine.yaml, line 2: not valid YAML: but found another document"),
            ("profile: v0\nsead: 1", "sead: no such setting; did you mean 'seed'?"),
        ],
    )
    def test_broken_files(self, tmp_path: Path, yaml: str, message: str) -> None:
        assert refusal(tmp_path, yaml).startswith(message)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        """It was once skipped without a word."""
        message = f"cannot read settings file {tmp_path}/no.yaml: No such file or directory"
        with pytest.raises(SettingsError, match=message):
            load_settings(registry(), config=tmp_path / "no.yaml", environ={})
        with pytest.raises(SettingsError, match=r"\(PAGED_CORE_CONFIG\)"):
            load_settings(registry(), environ={"PAGED_CORE_CONFIG": str(tmp_path / "no.yaml")})
        with pytest.raises(SettingsError, match="Is a directory"):
            load_settings(registry(), config=tmp_path, environ={})

    def test_an_empty_file_changes_nothing(self, tmp_path: Path) -> None:
        assert load(tmp_path, "# nothing\n").settings == Settings()
        assert load(tmp_path, "scheduler: {}\n").settings == Settings()

    def test_profiles_do_not_nest(self) -> None:
        nested = settings_class(registry().extended(Profile("v2", "profile: v0")))
        with pytest.raises(SettingsError, match="profile 'v2', line 1: a profile cannot start"):
            nested(profile="v2")


class TestPickling:
    def test_a_copy_is_equal(self) -> None:
        settings = Settings(profile="v0", observers=["decision_log"], num_blocks=3)
        copy = pickle.loads(pickle.dumps(settings))
        assert copy == settings
        assert hash(copy) == hash(settings)
        assert copy.model_dump() == settings.model_dump()
        assert copy.scheduler == PhasesSettings(delay_factor=0.5)
        assert pickle.loads(pickle.dumps(copy)) == settings

    def test_a_worker_reads_neither_its_environment_nor_files(self, tmp_path: Path) -> None:
        settings = EngineSettings(scheduler={"name": "prefill_or_decode", "max_num_seqs": 3})
        program = (
            "import pickle, sys\n"
            "settings = pickle.load(sys.stdin.buffer)\n"
            "print(settings.scheduler.name, settings.scheduler.max_num_seqs, settings.num_blocks)\n"
        )
        hostile = {
            "PAGED_CORE_NUM_BLOCKS": "7",
            "PAGED_CORE_SCHEDULER__MAX_NUM_SEQS": "9",
            "PAGED_CORE_NONSENSE": "1",
            "PAGED_CORE_CONFIG": str(tmp_path / "no.yaml"),
            "PAGED_CORE_BLOCK_PLUGIN": "policies",
        }
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=pickle.dumps(settings),
            env=os.environ | hostile,
            capture_output=True,
            check=False,
        )
        assert done.stdout.decode().split() == ["prefill_or_decode", "3", "None"], done.stderr


def test_the_schema_allows_shorthand_and_tables() -> None:
    schema = Settings.model_json_schema()
    assert "required" not in schema
    shorthand, table = schema["properties"]["scheduler"]["anyOf"]
    assert shorthand["enum"] == ["token_budget", "prefill_or_decode"]
    assert table["discriminator"]["propertyName"] == "name"
    assert schema["properties"]["scheduler"]["default"] == "token_budget"
    assert schema["properties"]["attention"]["anyOf"][0]["enum"] == ["auto", "torch"]
