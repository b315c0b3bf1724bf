"""Studies and runs as frames, and as what a notebook shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paged_core.errors import SettingsError
from paged_plugins.lab.results.load_results import load_results
from paged_plugins.notebook import ComparedStudy, compare, watch
from unit.studies import ABLATION, run, write

pytestmark = pytest.mark.heavy
pytest.importorskip("pandas", reason="the extra `lab` is not installed")


def test_frames_of_a_study_have_a_row_of_each_run_and_of_each_difference(tmp_path: Path) -> None:
    study = compare(ABLATION, measures=["e2e_ms_p50"], workers=1)
    runs = study.frame()
    assert len(runs) == 3 * 2
    means = runs.groupby("arm", sort=False)["e2e_ms_p50"].mean()
    differences = study.frame("differences").set_index("arm")
    assert list(differences["value"]) == list(means[differences.index])
    assert set(study.frame("asked")["slot"]) == {"scheduler", "victim"}
    assert run(write(tmp_path), tmp_path / "results") == 0
    kept = ComparedStudy.of(load_results(tmp_path / "results")).frame()
    place = ["arm", "seed"]
    assert kept.set_index(place)["e2e_ms_p50"].eq(runs.set_index(place)["e2e_ms_p50"]).all()


def test_a_study_that_is_wrong_says_where() -> None:
    with pytest.raises(SettingsError, match=r"study: .*'lur'.*arm evictor=lur"):
        compare(ABLATION | {"axes": {"evictor": ["lur"]}})


def test_a_frame_names_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match=r"pip install 'paged-core\[lab\]'"):
        watch("chat", {"num_blocks": 128}, steps=range(0)).frame()


def test_a_watched_run_has_what_changed_in_each_step() -> None:
    found = watch("chat", {"num_blocks": 128, "scheduler.max_num_seqs": 4}, steps=range(20, 60))
    assert len(found.frame()) == len(found.record.requests) == 110
    assert [each["whole"] for each in found.reports] == [True] + [False] * 39
    assert [each["steps"][-1][0] for each in found.reports] == list(range(20, 60))
    assert all(each["totals"]["running"] <= 4 for each in found.reports)
