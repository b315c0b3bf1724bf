"""Settings from files, and inside the settings of another program."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from paged_core.errors import SettingsError
from paged_core.settings.layers import Origin
from paged_core.settings.schema import EngineSettings, Resolved, load_settings
from unit.settings_parts import LogSettings, PhasesSettings, Settings, registry

TWO = (("two/paged_core_seed", b"1"), ("two/PAGED_CORE_SEED", b"1"))


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

    def test_the_working_directory_is_not_looked_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".env").write_text("PAGED_CORE_SEED=2\n")
        monkeypatch.chdir(tmp_path)
        assert load_settings(registry(), environ={}).settings == Settings()

    def test_variables_that_expand_without_end(self, tmp_path: Path) -> None:
        doubling = "A=0123456789\n" + "A=${A}${A}\n" * 40
        with pytest.raises(SettingsError, match=r"\.env, line 14: longer than 65,536 characters"):
            self.env_file(tmp_path, doubling)
        found = self.env_file(tmp_path, "B=2\nPAGED_CORE_SEED=${B}${B}${C:-1}\n")
        assert found.settings.seed == 221

    @pytest.mark.parametrize(
        ("variable", "path", "message"),
        [
            ("ENV_FILE", "missing", r"missing: No such .* \(PAGED_CORE_ENV_FILE\)"),
            ("SECRETS_DIR", "missing", r"missing: No such .* \(PAGED_CORE_SECRETS_DIR\)"),
            ("CONFIG", "missing", r"cannot read .*missing: No such .* \(PAGED_CORE_CONFIG\)"),
            ("CONFIG", ".", "Is a directory"),
            ("CONFIG", "/dev/zero", "larger than"),
            ("ENV_FILE", "/dev/zero", "larger than"),
            ("SECRETS_DIR", "binary", r"cannot read \S+paged_core_seed: 'utf-8'"),
            ("SECRETS_DIR", "two", "give one setting; remove one"),
        ],
    )
    def test_what_cannot_be_read_is_refused(
        self, tmp_path: Path, variable: str, path: str, message: str
    ) -> None:
        for name, content in (("binary/paged_core_seed", b"\xff"), *TWO):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            load_settings(registry(), environ={f"PAGED_CORE_{variable}": str(tmp_path / path)})

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

    def test_mistakes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match="did you mean 'num_blocks'"):
            self.application(monkeypatch, ENGINE__NUM_BLOK="64")
