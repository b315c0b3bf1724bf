"""The command line's frame, and the commands about plugins and settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from unittest.mock import Mock

import pytest
import typer
from typer.core import TyperGroup

from paged_core import cli, plugin
from paged_core.cli import frame, main
from paged_core.cli.options import SettingsArgs, expanded, is_setting
from paged_core.errors import CheckpointError
from paged_core.plugins.component import Command, Component, ComponentSettings
from paged_core.plugins.registry import Plugin, Registry

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *argv: str, status: int = 0, **environ: str) -> str:
    """Run a command with an environment of its own; return what it prints, or its error."""
    named = {f"PAGED_CORE_{key}": value for key, value in environ.items()} or {"PATH": ""}
    assert main(argv, named) == status, capsys.readouterr().err
    out, err = capsys.readouterr()
    if status:
        assert out == ""
        assert err.startswith("error: ")
        assert "Traceback" not in err
        return err.removeprefix("error: ").rstrip("\n")
    assert err == ""
    return out


def config(capsys: Capture, *argv: str, **environ: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = json.loads(run(capsys, "config", "--json", *argv, **environ))
    assert set(found) == {"settings", "sources"}
    return found["settings"], found["sources"]


class TestFrame:
    def test_help_lists_the_commands_of_the_core_and_of_plugins(self, capsys: Capture) -> None:
        text = run(capsys, "--help")
        assert run(capsys) == text
        for name in ("plugins", "config", "schema", "doctor", "replay", "diff"):
            assert f"\n  {name} " in text

    @pytest.mark.heavy
    @pytest.mark.parametrize("name", sorted(Registry.discover().commands))
    def test_help_is_one_screen_and_all_settings_another(self, capsys: Capture, name: str) -> None:
        loaded = frame.Session.of([], {}).load(name)
        for words, command in (
            [((name, own), each) for own, each in loaded.commands.items()]
            if isinstance(loaded, TyperGroup)
            else [((name,), loaded)]
        ):
            text = run(capsys, *words, "--help")
            assert len(text.splitlines()) <= 48, words
            assert "--scheduler.max-num-seqs" not in text
            settings = [one for one in command.params if is_setting(str(one.name))]
            assert bool(settings) == ("--help-settings" in text)
            if settings:  # and arguments may be missing
                listed = run(capsys, *words, "--help-settings")
                shown = [one.opts[0] for one in settings if not getattr(one, "hidden", False)]
                assert all(f"\n  {option} " in f"\n{listed}" for option in shown)
                assert "--scheduler.max-num-seqs" in shown
                assert "\nOptions of scheduler:\n" in listed

    def test_the_commands_of_the_core_come_from_its_plugin(self, capsys: Capture) -> None:
        registry = Registry(()).extended(plugin, plugin="core")
        assert set(registry.commands) == {"generate", "plugins", "config", "schema"}
        message = run(capsys, "config", "--block-plugin", "core", status=2)
        assert message.startswith("no command is called 'config'")
        assert "plugin 'core' (paged-core " in message
        assert "is for a slot that nothing declares, '" in message
        assert "broken" not in message

    def test_a_plugin_is_blocked_before_and_after_the_command(self, capsys: Capture) -> None:
        for args in (
            ["--block-plugin", "decisions", "plugins", "--json"],
            ["plugins", "--json", "--block-plugin=decisions"],
        ):
            found = json.loads(run(capsys, *args))
            assert {p["name"]: p["status"] for p in found["plugins"]}["decisions"] == "blocked"
            assert not [one for one in found["components"] if one["plugin"] == "decisions"]
        assert "\n  replay " not in run(capsys, "--help", BLOCK_PLUGIN="decisions")


REFUSED: list[tuple[str, str]] = [
    ("confog", "no command is called 'confog'; did you mean 'config'?"),
    ("replay x --block_plugin=decisions", "no command is called 'replay'"),
    ("config --enforce-eager hello", "hello"),
    ("config --num-blokcs 3", "No such option: --num-blokcs"),
    ("config --num-blokcs 3", "--num-blocks"),
    ("config --log-level loud", "no level is called 'loud'"),
    ("config LOG_LEVEL=loud", "PAGED_CORE_LOG_LEVEL"),
    ("config LOG_FORMAT=xml", "PAGED_CORE_LOG_FORMAT: no format is called 'xml'; there are: json"),
    ("config --config no.yaml", "no.yaml"),
    ("config SEEED=1", "did you mean 'PAGED_CORE_SEED'"),
    ("config --scheduler token_buget", "did you mean 'token_budget'"),
    ("config --scheduler=token_budget --scheduler.name fcfs", "--scheduler.name says 'fcfs'"),
    *(
        (f"diff one.jsonl other.jsonl {option} 1", f"{option} has no effect here")
        for option in ("--config", "--env-file", "--secrets-dir", "--seed")
    ),
    ("plugins qqqqqqqq", "; the nearest of "),
    ("plugins token_buget", "did you mean 'token_budget'"),
    ("plugins auto", "'auto' is ambiguous; write one of attention.auto, communicator"),
    ("plugins vlm-v1", "did you mean 'vllm-v1'"),
]
"""Commands, with variables at their end, and what their refusal says."""


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_is_refused(capsys: Capture, line: str, message: str) -> None:
    words = line.split()
    variables = [word for word in words if re.fullmatch("[A-Z_]+=.*", word)]
    environ = dict(word.split("=") for word in variables)
    argv = [word for word in words if word not in variables]
    assert message in run(capsys, *argv, status=2, **environ)


class TestConfig:
    def test_every_layer(self, capsys: Capture, tmp_path: Path) -> None:
        file = tmp_path / "engine.yaml"
        file.write_text("block_size: 4\nscheduler: {name: prefill_or_decode}\n")
        (tmp_path / "own.env").write_text("PAGED_CORE_WATERMARK=0.5\n")
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets" / "paged_core_threads").write_text("2\n")
        settings, sources = config(
            capsys,
            "--config",
            str(file),
            "--scheduler.max-num-seqs",
            "64",
            "--num_blocks=32",
            "--env-file",
            str(tmp_path / "own.env"),
            "--secrets-dir",
            str(tmp_path / "secrets"),
            "--enforce-eager",
            "--deterministic",
            "on",
            "--observers",
            '["decision_log"]',
            SCHEDULER__MAX_NUM_SEQS="3",
            SEED="5",
        )
        assert settings["scheduler"]["name"] == "prefill_or_decode"
        assert settings["scheduler"]["max_num_seqs"] == 64
        assert (settings["num_blocks"], settings["seed"], settings["block_size"]) == (32, 5, 4)
        assert (settings["watermark"], settings["threads"]) == (0.5, 2)
        assert (settings["enforce_eager"], settings["deterministic"]) == (True, True)
        assert [one["name"] for one in settings["observers"]] == ["decision_log"]
        assert sources["scheduler.max_num_seqs"] == {
            "layer": "cli",
            "from": "--scheduler.max-num-seqs",
        }
        assert sources["scheduler.name"] == {"layer": "yaml", "from": str(file)}
        assert sources["seed"] == {"layer": "env", "from": "PAGED_CORE_SEED"}
        assert sources["watermark"] == {"layer": "env", "from": str(tmp_path / "own.env")}
        assert sources["threads"]["from"] == str(tmp_path / "secrets" / "paged_core_threads")
        leaves = {
            f"{key}.{option}" if option else key
            for key, value in settings.items()
            for option in (value if isinstance(value, dict) else [""])
        }
        assert set(sources) == leaves

    @pytest.mark.parametrize(
        ("option", "value", "shown"),
        [
            ("num-blocks", "7", "num_blocks 7 cli --num-blocks"),
            ("scheduler.chunked-prefill", "No", "scheduler.chunked_prefill false cli"),
            ("observers", "[]", "observers [] cli"),
            ("routes", '["page", "openai"]', "routes page, openai cli"),
            ("observers", '[{"name": "live_view", "steps": 7}]', '"steps": 7'),
        ],
    )
    def test_a_table_for_people(self, capsys: Capture, option: str, value: str, shown: str) -> None:
        assert shown in " ".join(run(capsys, "config", f"--{option}", value).split())

    @pytest.mark.parametrize(
        "argv",
        [
            ("--scheduler", "prefill_or_decode"),
            ("--scheduler.name", "prefill_or_decode"),
            ("--scheduler.name=prefill_or_decode",),
            ("--scheduler", '{"name": "prefill_or_decode"}'),
            ("--profile", "vllm-v0"),
        ],
    )
    def test_ways_to_choose_a_scheduler(self, capsys: Capture, argv: tuple[str, ...]) -> None:
        assert config(capsys, *argv)[0]["scheduler"]["name"] == "prefill_or_decode"

    def test_help_shows_each_components_own_default(self, capsys: Capture) -> None:
        """Help made from a union once showed the defaults of its last member for all."""
        text = " ".join(run(capsys, "config", "--help-settings").split())
        assert "(default: token_budget)" in text
        assert "(prefill_or_decode: null; token_budget: 2048;" in text
        assert "--scheduler.chunked-prefill" in text


class TestPlugins:
    def test_shape(self, capsys: Capture) -> None:
        found = json.loads(run(capsys, "plugins", "--json"))
        assert set(found) == {"plugins", "components", "profiles"}
        assert {"name": "orca", "plugin": "policies"}.items() <= found["profiles"][3].items()
        for found_plugin in found["plugins"]:
            assert set(found_plugin) == {"name", "distribution", "version", "status", "reason"}
        for one in found["components"]:
            keys = {"slot", "name", "plugin", "status", "default", "summary", "options"}
            assert set(one) == keys
            assert one["options"]["properties"]["name"]["const"] == one["name"]
        defaults = {one["slot"]: one["name"] for one in found["components"] if one["default"]}
        assert defaults["scheduler"] == "token_budget"
        assert defaults["attention"] == "auto"

    @pytest.mark.parametrize(
        ("name", "keys"),
        [
            ("token_budget", ["scheduler.token_budget"]),
            ("token-budget", ["scheduler.token_budget"]),
            ("scheduler.token_budget", ["scheduler.token_budget"]),
            ("attention.auto", ["attention.auto"]),
            ("decisions", ["observers.decision_log"]),
            ("vllm-v1", []),
        ],
    )
    def test_one_of_them(self, capsys: Capture, name: str, keys: list[str]) -> None:
        found = json.loads(run(capsys, "plugins", name, "--json"))["components"]
        assert [f"{one['slot']}.{one['name']}" for one in found] == keys
        assert (keys or ["\nscheduler:"])[0] in run(capsys, "plugins", name)

    def test_options_for_people(self, capsys: Capture) -> None:
        text = run(capsys, "plugins", "scheduler.token_budget")
        (row,) = [line.split() for line in text.splitlines() if line.startswith(" chunked_prefill")]
        assert row[1:3] == ["bool", "true"]
        assert "available: yes" in text


def test_two_providers_are_listed_and_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry.discover()
    for name in ("a", "b"):
        parts = (Component("scheduler", FastSettings, "m:F"), Command("mine", "m:f", "Ours."))
        registry = registry.extended(*parts, plugin=name)
    old = Plugin("old", "dist-old", "1", components=(Component("gone", FastSettings, "m:F"),))
    registry = Registry((*registry.plugins, old.broken("too old")))
    monkeypatch.setattr(Registry, "discover", lambda **_: registry)
    found = json.loads(run(capsys, "plugins", "--json"))["components"]
    fast = [(one["slot"], one["plugin"], one["status"]) for one in found if one["name"] == "fast"]
    assert fast == [
        ("scheduler", "a", "active"), ("scheduler", "b", "active"), ("gone", "old", "broken")
    ]  # fmt: skip
    for command in ("config", "mine"):
        message = run(capsys, command, status=2)
        assert "use --block-plugin a or --block-plugin b" in message


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (CheckpointError("truncated"), 1, "error: truncated\n"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_statuses(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(cli, "_run", Mock(side_effect=error))
    assert main([]) == status
    assert capsys.readouterr().err == said


class FastSettings(ComponentSettings):
    name: Literal["fast"] = "fast"
    speed: int = 3


def two_words(
    given: SettingsArgs, words: Annotated[list[str], typer.Argument()], seed: int = 9
) -> int:
    """Take words and settings, and an option of its own where a setting would have been."""
    assert len(words) == 2
    return seed + len(given.options)


app = typer.Typer()
app.command("one")(two_words)


@app.command()
def two(given: SettingsArgs) -> int:
    return len(given.options)


class TestCommandsOfPlugins:
    def session(self, target: str) -> frame.Session:
        session = frame.Session({})
        registry = Registry(()).extended(plugin, plugin="core")
        more = (
            Command("mine", f"{__name__}:{target}", "Does it."),
            Component("scheduler", FastSettings, "m:F"),
        )
        session.__dict__["registry"] = registry.extended(*more)
        return session

    def run(self, target: str, *argv: str, monkeypatch: pytest.MonkeyPatch) -> Any:
        session = self.session("x")
        monkeypatch.setattr(Command, "load", lambda _: globals()[target])
        return frame.root().main(["mine", *argv], standalone_mode=False, obj=session)

    def test_a_function(self, monkeypatch: pytest.MonkeyPatch) -> None:
        words = ("--scheduler.speed=4", "a", "--seed", "5", "--deterministic", "b")
        assert self.run("two_words", *words, monkeypatch=monkeypatch) == 7

    def test_an_app_is_left_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(2):
            assert self.run("app", "one", "a", "b", monkeypatch=monkeypatch) == 9
            assert self.run("app", "two", "--num_blocks", "1", monkeypatch=monkeypatch) == 1
        assert app.registered_commands[1].callback is two

    def test_after_two_dashes_all_is_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        argv = ("--", "--block-plugin", "--deterministic")
        assert self.run("two_words", *argv, monkeypatch=monkeypatch) == 9

    def test_a_function_without_settings_is_left_alone(self) -> None:
        def plain(word: str) -> None: ...

        assert expanded(plain, Registry(()), {}) is plain


def test_schema(capsys: Capture) -> None:
    schema = json.loads(run(capsys, "schema"))
    assert "token_budget" in schema["properties"]["scheduler"]["anyOf"][0]["enum"]
    assert schema["additionalProperties"] is False
