"""The device of a process among those that compute a step together."""

from __future__ import annotations

import pytest
import torch

from paged_backends.device import choose_device
from paged_core.errors import SettingsError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
class TestWithTwoGpus:
    @pytest.mark.parametrize("name", ["auto", "cuda"])
    def test_each_rank_has_its_own(self, name: str) -> None:
        assert [choose_device(name, rank) for rank in (0, 1)] == [
            torch.device("cuda", 0),
            torch.device("cuda", 1),
        ]

    def test_a_number_is_for_all_ranks(self) -> None:
        assert {choose_device("cuda:1", rank) for rank in (0, 1)} == {torch.device("cuda", 1)}

    @pytest.mark.parametrize("name", ["auto", "cuda"])
    def test_a_rank_without_one_is_refused(self, name: str) -> None:
        with pytest.raises(SettingsError, match=r"cuda:2, for rank 2, is not there: .* sees 2"):
            choose_device(name, 2)

    def test_a_number_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(SettingsError, match="device: cuda:5 is not there"):
            choose_device("cuda:5")


def test_ranks_share_a_cpu() -> None:
    assert choose_device("cpu", 3) == torch.device("cpu")
