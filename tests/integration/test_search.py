"""The search for policies under examples/search, with a tiny budget."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from architecture.snippets import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.long]


def test_a_search_that_was_killed_goes_on_and_finds_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "search"))
    search = import_module("search")
    check = search.Lab.check

    def check_few(lab: Any, name: str) -> None:
        check(lab, name) if int(name[-1], 16) % 4 == 0 else lab.keep(name, "refused by this test")

    monkeypatch.setattr(search.Lab, "check", check_few)
    for seeds, few in {"FIRST": range(1), "TRAINING": range(2), "HELD_OUT": range(8, 10)}.items():
        monkeypatch.setattr(search, seeds, few)
    workload = {"requests": 24, "lengths": {"prompt": {"uniform": [20, 90]}, "output": 8}}
    workload["prefixes"] = {"system": 64, "conversation": {"turns": 3}}
    path, log = tmp_path / "small.yaml", tmp_path / "kept" / "measured.jsonl"
    path.write_text(yaml.safe_dump(workload))
    asked = ["evictor", "--workload", str(path), "--set", "num_blocks=24", "--workers", "1"]
    asked += ["--generations", "3", "--population", "9", "--output", str(log.parent)]
    search.main(asked)
    told, measured = capsys.readouterr().out, log.read_text()
    assert "COMPONENT = Component" in told
    log.write_text(measured[: 3 * len(measured) // 4])
    search.main(asked)
    assert sorted(log.read_text().splitlines()) == sorted(measured.splitlines())
    assert capsys.readouterr().out == told
