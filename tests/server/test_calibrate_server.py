"""``calibrate --url``: loads over real sockets, and a file that simulations take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paged_core.cli import main
from server.served import Served

pytestmark = pytest.mark.heavy
Capture = pytest.CaptureFixture[str]
SMALL = ("--requests", "150", "--max-concurrency", "4", "--max-prompt", "200")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(num_blocks=512, max_model_len=512) as server:
        yield server


@pytest.mark.parametrize("name", ["linear", pytest.param("roofline", marks=pytest.mark.long)])
def test_a_server_is_calibrated_and_simulated(
    name: str, served: Served, tmp_path: Path, capsys: Capture
) -> None:
    file, chosen = tmp_path / "found.yaml", ("--cost-model.name", name)
    if name == "roofline":
        chosen = (*chosen, "--cost-model.model", "smollm-135m")
    options = (*SMALL, "--output", str(file), *chosen[: 4 if name == "roofline" else 0])
    assert main(["calibrate", "--url", served.address, "--json", *options], {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cost_model"], found["measured"]["model"]) == (name, "demo")
    assert (found["num_tokens"], found["max_model_len"]) == (512 * 16, 512)
    assert found["errors"].keys() == {"TTFT", "time per token"}
    assert found["measured"]["loads"] >= 6
    assert found["measured"]["noise"] > 0
    simulate = ["simulate", "chat", "--cost-model.name", name, "--cost-model.file", str(file)]
    assert main([*simulate, "--json"], {}) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--url", "http://127.0.0.1:9"), "cannot be reached"),
        (("--model", "no-such"), "no-such"),
        (("--requests", "30"), "raise --requests"),
        (("--steps", "60"), "--steps has no effect with --url"),
        (("--cost-model.device", "x9"), "no device is called 'x9'"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else None,
)
def test_what_prevents_it_is_told(
    options: tuple[str, ...], message: str, served: Served, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "found.yaml"
    assert main(["calibrate", "--url", served.address, "--output", str(file), *options], {}) != 0
    assert message in capsys.readouterr().err
    assert not file.exists()
