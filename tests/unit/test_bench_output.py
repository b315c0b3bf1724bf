"""What cannot be written is refused before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import BadParameter

from paged_plugins.bench.output_file import _check


def test_a_file_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.json"
    assert _check(None) is None
    assert _check(file) == file
    file.touch()
    assert _check(file) == file
    with pytest.raises(BadParameter, match="is a folder; give the name of a file"):
        _check(tmp_path)
    with pytest.raises(BadParameter, match=r"there is no folder .*missing; make it first"):
        _check(tmp_path / "missing" / "results.json")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(BadParameter, match="cannot be written here; choose another file"):
        _check(file)
