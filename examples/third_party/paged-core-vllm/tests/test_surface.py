"""The surface check, on stand-ins for vLLM's classes; and the command that prints it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paged_core.errors import PluginError

from paged_core_vllm import cli, surface
from paged_core_vllm.surface import Attribute


class Vllm:
    """A class with an attribute of each kind."""

    def __init__(self) -> None:
        self.running: list[int] = []

    def plain(self, request: object, more: int = 0) -> str:
        return f"{request} is asked for by name"


def attribute(name: str, *parameters: str, **more: Any) -> Attribute:
    return Attribute(f"{__name__}:Vllm", name, "asked", parameters, **more)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        (attribute("plain", "request"), None),
        (attribute("plain", "request", words=("asked for",)), None),
        (attribute("running", is_made=True), None),
        (attribute("planned"), "it is not there"),
        (attribute("waiting", is_made=True), "it is not there"),
        (attribute("plain", "name"), "its parameters are (request, more), and should begin (name)"),
        (attribute("plain"), "it needs 'request', too"),
        (attribute("plain", "request", words=("heap",)), "it does not say 'heap'"),
    ],
    ids=["fits", "words", "made", "gone", "not-made", "renamed", "grown", "rewritten"],
)
def test_each_way_in_which_an_attribute_can_differ_is_named(
    wanted: Attribute, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surface, "ATTRIBUTES", (wanted,))
    monkeypatch.setattr(surface, "_owner", lambda _: Vllm)
    (finding,) = surface.findings()
    assert finding.problem == problem


def test_an_unknown_surface_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "ATTRIBUTES", (attribute("a"), attribute("b", is_needed=False)))
    monkeypatch.setattr(surface, "_owner", lambda _: Vllm)
    monkeypatch.setattr(surface, "installed_release", lambda: "9.9")
    with pytest.raises(PluginError, match=r"vLLM 9\.9 has another surface.*Vllm\.a: it is not th"):
        surface.refuse_unknown()


def test_what_can_decide_is_listed_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", "--json"])
    told = json.loads(capsys.readouterr().out)
    problems = {(row["slot"], row["name"]): row["problem"] for row in told["components"]}
    assert problems["queue_order", "fair"] is None
    assert problems["evictor", "arc"] is None
    assert "quanta" in problems["queue_order", "mlfq"]
    assert "future" in problems["evictor", "belady"]
    assert "swapping" in problems["preemption", "swap"]
    assert told["settings"]["queue_order"]["value"] == {"name": "fcfs"}


def test_without_vllm_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surface, "installed_release", lambda: None)
    assert cli.main(["check"]) == 1
    assert "no vLLM is installed" in capsys.readouterr().out


def test_a_choice_that_vllm_cannot_have_fails_the_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surface, "ATTRIBUTES", ())
    monkeypatch.setattr(surface, "installed_release", lambda: "9.9")
    monkeypatch.setenv("PAGED_CORE_VLLM__QUEUE_ORDER", "mlfq")
    assert cli.main(["check"]) == 1
    assert "'mlfq' cannot be carried over to vLLM: it has quanta" in capsys.readouterr().out
