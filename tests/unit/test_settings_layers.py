"""Which layer of settings wins, and what is said about mistakes in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from paged_core.errors import SettingsError
from paged_core.plugins.component import Profile
from paged_core.settings.schema import load_settings, settings_class
from unit.settings_parts import (
    BudgetSettings,
    LogSettings,
    PhasesSettings,
    Settings,
    load,
    refusal,
    registry,
)


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
        budget = load(tmp_path, "", "scheduler.num_steps=4", SCHEDULER="token_budget").settings
        assert budget.scheduler == BudgetSettings(num_steps=4)
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

    def test_overrides_lie_over_all(self) -> None:
        environ = {"PAGED_CORE_SEED": "1"}
        found = load_settings(registry(), environ=environ, overrides={"seed": 2})
        assert (found.settings.seed, found.origins["seed"].layer) == (2, "python")


class TestMistakesOfLayers:
    def test_reserved_and_empty_variables(self, tmp_path: Path) -> None:
        found = load(tmp_path, CACHE_DIR="/x", LOG_LEVEL="debug", BLOCK_PLUGIN="", NUM_BLOCKS="")
        assert found.settings == Settings()

    @pytest.mark.parametrize("name", ["paged_core_seed", "PAGED_CORE_seed", "Paged_Core_Seed"])
    def test_a_variable_in_small_letters_is_not_ignored(self, name: str) -> None:
        with pytest.raises(SettingsError, match=f"^{name} sets nothing; write PAGED_CORE_SEED$"):
            load_settings(registry(), environ={name: "1"})

    @pytest.mark.parametrize(
        ("environ", "message"),
        [
            (
                {"NUM_BLOK": "1"},
                "PAGED_CORE_NUM_BLOK sets nothing; did you mean 'PAGED_CORE_NUM_BLOCKS'?",
            ),
            ({"CONFIG__X": "1"}, "PAGED_CORE_CONFIG__X sets nothing; did you mean 'PAGED_CORE_CO"),
            (
                {"SCHEDULER": "prefill_or_decode", "SCHEDULER__NAME": "token_budget"},
                "scheduler.name: PAGED_CORE_SCHEDULER says 'prefill_or_decode',"
                " PAGED_CORE_SCHEDULER__NAME says 'token_budget'; keep one of them",
            ),
            (
                {"SCHEDULER__DELAY_FACTOR": "2"},
                "scheduler.delay_factor: token_budget has no such option; to set it, name"
                " prefill_or_decode (PAGED_CORE_SCHEDULER__DELAY_FACTOR)",
            ),
            ({"ATTENTION__SPEED": "2"}, "attention.speed: auto has no such option"),
            (
                {"OBSERVERS__PATH": "x"},
                "observers: input should be a valid list, not {'path': 'x'}; write it as JSON, "
                "as in '[]' (PAGED_CORE_OBSERVERS__PATH)",
            ),
            (
                {"OBSERVERS": "decision_log"},
                "observers: input should be a valid list, not 'decision_log'; write it as JSON, "
                "as in '[]' (PAGED_CORE_OBSERVERS)",
            ),
            ({"OBSERVERS": '["decision_log"'}, "observers: not valid JSON"),
            ({"MODEL__NAME": "x"}, "model: input should be a valid string"),
        ],
    )
    def test_variables(self, tmp_path: Path, environ: dict[str, str], message: str) -> None:
        assert refusal(tmp_path, **environ).startswith(message)

    def test_an_option_of_the_command_line_is_named(self, tmp_path: Path) -> None:
        assert refusal(tmp_path, "", "scheduler.name=token_buget") == (
            "scheduler: no scheduler is called 'token_buget'; did you mean 'token_budget'?"
            " (--scheduler.name)"
        )

    @pytest.mark.parametrize(
        ("yaml", "message"),
        [
            ("- 1", "/engine.yaml, line 1: settings must be a mapping of keys to values"),
            ("a: 1\nb: [1,\n", "/engine.yaml, line 3: not valid YAML: "),
            ("seed: 1\nseed: 2", "/engine.yaml, line 2: the key 'seed' is given twice"),
            ("1: 2", "/engine.yaml, line 1: the key is not text; quote it"),
            ("a: 1\n---\nb: 2", "/engine.yaml, line 2: not valid YAML: but found another document"),
            ("profile: v0\nsead: 1", "sead: no such setting; did you mean 'seed'?"),
            (
                "seed: 1\nscheduler:\n  max_num_seqs: many\n",
                "scheduler.max_num_seqs: input should be a valid integer, unable to parse string as"
                " an integer, not 'many' (/engine.yaml, line 3)",
            ),
        ],
    )
    def test_broken_files(self, tmp_path: Path, yaml: str, message: str) -> None:
        assert refusal(tmp_path, yaml).startswith(message)

    def test_profiles_do_not_nest(self) -> None:
        nested = settings_class(registry().extended(Profile("v2", "profile: v0")))
        with pytest.raises(SettingsError, match="profile 'v2', line 1: a profile cannot start"):
            nested(profile="v2")
