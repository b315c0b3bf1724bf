"""The file that the observer writes."""

import csv
from pathlib import Path

import pytest
from paged_core.errors import SettingsError
from paged_testing import Workload, build_memory_engine, serve, simple_request


def rows(path: Path, every: int = 1) -> list[dict[str, str]]:
    table = {"name": "utilisation_csv", "path": str(path), "every": every}
    engine = build_memory_engine(observers=[table], num_blocks=10)
    serve(engine, Workload(tuple((0, simple_request(name, 7, 3)) for name in "AB")))
    engine.close()
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_per_step(tmp_path: Path) -> None:
    first, second, third = rows(tmp_path / "new" / "utilisation.csv")
    assert first["tokens"] == "14"
    assert (first["running"], first["waiting"]) == ("2", "0")
    assert (second["used_blocks"], second["utilisation"]) == ("4", "0.4000")
    assert (third["finished"], third["utilisation"]) == ("2", "0.0000")


def test_lines_that_are_left_out_are_counted(tmp_path: Path) -> None:
    first, rest = rows(tmp_path / "utilisation.csv", every=2)
    assert (first["step"], first["tokens"]) == ("1", "16")
    assert (rest["step"], rest["tokens"], rest["finished"]) == ("2", "2", "2")


def test_a_file_that_cannot_be_written_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"utilisation_csv.path: cannot write"):
        rows(tmp_path)
