"""The search for policies under examples/search, with a tiny budget."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import yaml

from architecture.snippets import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.long]


def test_a_search_that_was_killed_goes_on_and_finds_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "search"))
    search = import_module("search")
    lengths = {"prompt": {"uniform": [20, 90]}, "output": 8}
    prefixes = {"system": 64, "conversation": {"turns": 3}}
    workload = {"requests": 24, "arrivals": {"poisson": {"rate": 20}}, "lengths": lengths}
    path, log = tmp_path / "small.yaml", tmp_path / "kept" / "measured.jsonl"
    path.write_text(yaml.safe_dump(workload | {"prefixes": prefixes}))
    asked = ["evictor", "--workload", str(path), "--set", "num_blocks=24", "--workers", "1"]
    asked += ["--generations", "2", "--population", "4", "--output", str(log.parent)]
    search.main(asked)
    told, measured = capsys.readouterr().out, log.read_text()
    assert "COMPONENT = Component" in told
    log.write_text(measured[: len(measured) // 2])
    search.main(asked)
    assert sorted(log.read_text().splitlines()) == sorted(measured.splitlines())
    assert capsys.readouterr().out == told
