"""Commands show the texts of files and plugins, which command no terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from paged_core.cli import main
from paged_core.cli.output import echo, print_json, print_table
from paged_core.plugins.component import Component
from paged_core.plugins.registry import Registry
from paged_testing.engines import registry_with
from unit.faulty_settings import FaultySettings

EVIL = "\x1b]0;owned\x07\x1b[31mred\x9b2J\r\u202e"
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def told(capsys: pytest.CaptureFixture[str], status: int, *argv: str) -> str:
    """Run a command; return what it prints, which commands no terminal."""
    assert main([*argv], {"PATH": ""}) == status
    text = "".join(capsys.readouterr())
    assert not COMMANDS.search(text)
    return text


def test_scenarios_and_their_traces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    scenario = {"name": EVIL, "about": EVIL, "max_steps": 1, "settings": {"num_blocks": 8}}
    scenario["requests"] = [{"id": f"r{EVIL}", "prompt": 4, "output": 4}]
    path.write_text(yaml.safe_dump(scenario), "utf-8")
    for options in ((), ("--json",), ("--requests",)):
        assert "red" in told(capsys, 1, "replay", str(path), *options)


def test_plugins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_with(Component("victim", FaultySettings, "unit.nowhere:No", summary=EVIL))
    monkeypatch.setattr(Registry, "discover", lambda *_, **__: registry)
    assert "\\x1b[31mred" in told(capsys, 0, "plugins")
    assert "\\x1b[31mred" in told(capsys, 0, "plugins", "victim.faulty")
    assert "\\u001b[31mred" in told(capsys, 0, "plugins", "--json")


def test_lines_tables_and_documents(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"a {EVIL}\nb")
    print_table(EVIL, [EVIL], [[EVIL]])
    print_json({EVIL: EVIL})
    out = capsys.readouterr().out
    assert not COMMANDS.search(out)
    assert json.loads(out[out.index("{") :]) == {EVIL: EVIL}
