"""A cost model that is fitted to the answers of a server, which is simulated and so exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from paged_core.engine.wiring import build_engine
from paged_core.errors import EngineError, SettingsError
from paged_core.settings.schema import EngineSettings
from paged_plugins.http_client import HttpClient, ServerError
from paged_plugins.http_load import Answer
from paged_plugins.lab.calibration import served_fit
from paged_plugins.lab.calibration.served_fit import calibrate_served, check_fitted, observe
from paged_plugins.lab.calibration.served_loads import (
    ClosedLoad,
    Driven,
    Middle,
    ServedLoad,
    cache_of,
    design,
    drive,
    in_turn,
    noise_of,
)
from paged_plugins.lab.cost_model import CostModelContext, StepWork
from paged_plugins.lab.cost_models.linear import PARTS, LinearCost
from paged_plugins.lab.cost_models.roofline import RooflineCost
from paged_plugins.lab.cost_models.weights_file import WeightsFile, write_weights
from paged_plugins.lab.settings import LinearSettings, RooflineSettings, SimulatedSettings
from unit.gpu_tables import SYSTEM, write_package
from unit.lab_runs import REGISTRY, simulated

LINEAR = {"fixed": 2e-3, "per_prefill_token": 4e-5, "per_prefill_pair": 5e-8}
LINEAR |= {"per_decode_sequence": 3e-5, "per_context_token": 4e-7}
NO_PARTS = {"name": "linear", **dict.fromkeys(PARTS, 0.0)}
OUTSIDE = 0.004
"""Seconds of each request outside the engine."""


def loads(**changes: int) -> list[ClosedLoad]:
    sizes = {"most_clients": 16, "most_prompt": 600, "most_requests": 400, "room": 10**5}
    return design(**{**sizes, "vocab_size": 1000, **changes})


def engine_of(cost_model: dict[str, Any]) -> EngineSettings:
    return simulated(cost_model=cost_model, block_size=16, num_blocks=4000)


def answered(settings: EngineSettings) -> list[ServedLoad]:
    """Loads as a server that takes these times would answer them."""
    found = []
    for load in loads():
        keeper = served_fit._StepKeeper()
        engine = build_engine(settings, REGISTRY, observers=[keeper])
        record = served_fit._LoadLoop(engine, keeper, load).record()
        by_id = {each.id: each for each in record.requests}
        answers = []
        for each in (by_id[request.id] for request in load.requests):
            ttft, whole = ((t or 0.0) - each.arrival for t in (each.first_token, each.finished))
            one = Answer(each.num_prompt, 0.0, num_output=each.num_output, ttft=ttft + OUTSIDE)
            one.latency = whole + OUTSIDE
            answers.append(one)
        found.append(ServedLoad.of(load, answers))
    return found


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("planted", "start"),
    [
        ({**NO_PARTS, **LINEAR}, {"name": "linear"}),
        (
            {
                **{"name": "roofline", "device": "h100", "model": "qwen3-0.6b"},
                **{"step_overhead": 2e-3, "compute_efficiency": 0.2, "memory_efficiency": 0.5},
            },
            {"name": "roofline", "device": "h100", "model": "qwen3-0.6b"},
        ),
        (
            {"name": "measured", "host_per_step": 3e-3, "host_per_sequence": 2e-4},
            {"name": "measured"},
        ),
    ],
    ids=["linear", "roofline", "measured"],
)
def test_planted_terms_are_found(
    planted: dict[str, Any], start: dict[str, Any], tmp_path: Path
) -> None:
    if planted["name"] == "measured":
        tables = write_package(tmp_path / "package")
        start |= {"tables": tables, "system": SYSTEM, "model": "some/small"}
    seen = answered(engine_of({**start, **planted}))
    found = calibrate_served(observe(seen, engine_of(start), REGISTRY), engine_of(start), REGISTRY)
    for name, weight in found.weights.items():
        assert weight == pytest.approx(planted[name], rel=0.05), name
    assert len(found.weights) >= 2
    assert found.measured["seconds_per_request"] == pytest.approx(OUTSIDE, rel=0.05)
    assert {name: each["loads"] for name, each in found.errors.items()} == {
        "TTFT": 3,
        "time per token": 3,
    }
    assert max(each["p90"] for each in found.errors.values()) < 0.01
    told = {name: str(start[name]) for name in start if name != "name"}
    assert told.items() <= found.options.items()


def test_a_file_of_another_cost_model_is_filled_in_and_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "found.yaml"
    found = WeightsFile(
        cost_model="roofline",
        options={"device": "l4", "model": "qwen3-0.6b"},
        weights={"step_overhead": 0.25},
        num_tokens=320,
        max_model_len=77,
    )
    write_weights(path, found)
    context = CostModelContext(settings=simulated())
    model = RooflineCost(RooflineSettings(file=path), context)
    assert model.seconds(StepWork()) == 0.25
    assert (model.num_blocks(16), model.max_model_len) == (20, 77)
    over = RooflineCost(RooflineSettings(file=path, step_overhead=0.5), context)
    assert over.seconds(StepWork()) == 0.5
    with pytest.raises(SettingsError, match="is of the cost model 'roofline', not of 'linear'"):
        LinearCost(LinearSettings(file=path), context)
    write_weights(path, found.model_copy(update={"weights": {"compute_efficiency": 2.0}}))
    with pytest.raises(SettingsError, match=r"compute_efficiency=2.0: .*less than or equal to 1"):
        RooflineCost(RooflineSettings(file=path), context)


def test_a_design_keeps_to_its_bounds() -> None:
    chosen = loads(most_requests=120, room=4000)
    assert sum(len(load.requests) for load in chosen) <= 120
    largest = max(
        load.clients * max(r.num_new + r.output for r in load.requests) for load in chosen
    )
    assert largest <= 4000
    sizes = [load.clients * load.prompt for load in loads()]
    assert sizes == sorted(sizes)
    with pytest.raises(SettingsError, match=r"2 loads of 16 requests .* raise --requests"):
        loads(most_requests=16)


def test_only_cost_models_with_terms_are_fitted() -> None:
    other = simulated().model_copy(update={"cost_model": SimulatedSettings()})
    with pytest.raises(SettingsError, match=r"'simulated' cannot be fitted .* linear, roofline"):
        check_fitted(other, REGISTRY)


class Scripted:
    """A client whose server answers each request with the same events, or fails."""

    url = "http://server"

    def __init__(self, *events: str | Exception, metrics: str = "") -> None:
        self._events, self._metrics = events, metrics

    async def events(self, _path: str, _body: Any) -> AsyncIterator[str]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event
        if not self._events:
            await asyncio.Event().wait()

    async def text(self, _path: str) -> str:
        if not self._metrics:
            raise ServerError("not found", 404)
        return self._metrics


def driven(client: Scripted, chosen: Sequence[ClosedLoad]) -> Driven:
    to_server = cast("HttpClient", client)
    run = drive(to_server, "m", chosen, vocab_size=9, seconds=2.0, advance=lambda: None)
    return asyncio.run(run)


TEXT = '{"choices": [{"text": "a"}]}'
COUNTED = '{"choices": [{"text": "a"}], "usage": {"completion_tokens": 1, "prompt_tokens": 1}}'


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Scripted(ServerError("out of memory", 503)), "1 client .* 503: out of memory"),
        (Scripted(TEXT, "[DONE]"), "does not say how many it has"),
        (Scripted('{"error": "no cache"}'), "no cache"),
        (Scripted("{"), "cannot be read"),
        (Scripted(TEXT), r"the stream ended without \[DONE\]"),
        (Scripted(), r"answered 0 of 12 loads in 2 s, .*raise --seconds"),
    ],
    ids=["refuses", "no usage", "error event", "damaged", "cut", "hangs"],
)
def test_a_server_that_fails_ends_the_calibration(client: Scripted, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        driven(client, loads())


def test_the_first_load_is_sent_again_between_the_others() -> None:
    chosen = loads()
    sent = in_turn(chosen)
    assert sent[:2] == [chosen[0], chosen[0]]
    assert [each for each in sent if each is not chosen[0]] == chosen[1:]
    assert sum(each is chosen[0] for each in sent) == 2 + len(chosen) // 3
    found = driven(Scripted(COUNTED, "[DONE]"), chosen)
    assert len(found.loads) == len(chosen)
    assert found.noise is not None


def test_noise_is_by_how_much_the_times_of_one_load_differ() -> None:
    def seen(ttft: float, tpot: float | None) -> ServedLoad:
        later = None if tpot is None else Middle(tpot, frozenset())
        return ServedLoad(load=loads()[0], ttft=Middle(ttft, frozenset()), tpot=later)

    assert noise_of([seen(0.2, 0.05)]) is noise_of([]) is None
    assert noise_of([seen(0.2, 0.05), seen(0.2, 0.04), seen(0.21, 0.06)]) == pytest.approx(0.4)
    assert noise_of([seen(0.2, None), seen(0.3, None)]) == pytest.approx(0.4)


def test_the_cache_is_read_from_the_metrics() -> None:
    def read(metrics: str) -> Any:
        return asyncio.run(cache_of(cast("HttpClient", Scripted(metrics=metrics))))

    info = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="900"} 1.0'
    assert read(f"# HELP x\n{info}\n") == (900, 16)
    assert read("vllm:num_requests_running 0\n") is read("") is None
    assert read(info.replace("900", "None")) is None
