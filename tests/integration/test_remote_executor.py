"""An executor in a process of its own says what the same one says in this process."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from integration.remote_executor import PICKLING, REMOTE, favour_token_9
from paged_core.engine import Engine
from paged_core.errors import RequestError, SettingsError
from paged_core.interfaces.attention import AttentionParts
from paged_core.interfaces.executor import ExecutorParts
from paged_core.interfaces.runner import RunnerParts
from paged_core.registry import Registry
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.settings import settings_class
from paged_core.wiring import build_engine
from paged_testing import ExecutorConformance, registry_with

PROMPT = (5, 7, 11, 13, 17, 19)
SMALL: dict[str, Any] = {
    "model": "demo",
    "dtype": "float32",
    "threads": 1,
    "num_blocks": 32,
    "block_size": 4,
    "max_model_len": 48,
}


REQUESTS = {
    "greedy": SamplingParams(max_tokens=6),
    "sampled": SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=6, logprobs=1),
    "prompt": SamplingParams(prompt_logprobs=1, max_tokens=3),
    "beams": SamplingParams(beam_width=3, n=2, max_tokens=6),
    "processed": SamplingParams(logits_processors=[favour_token_9], max_tokens=6),
}


def make_request(name: str, sampling: SamplingParams) -> Request:
    return Request(id=name, prompt=PROMPT, sampling=sampling)


def answers(engine: Engine) -> list[Any]:
    groups = [engine.add(make_request(name, asked)) for name, asked in REQUESTS.items()]
    while engine.has_unfinished:
        engine.step()
    engine.close()
    return [
        (group.prompt_logprobs, [(s.output, s.logprobs, s.error) for s in group.sequences])
        for group in groups
    ]


def build(registry: Registry, **settings: Any) -> Engine:
    return build_engine(settings_class(registry)(**{**SMALL, **settings}), registry)


@pytest.mark.parametrize("name", ["memory", "local"])
def test_says_the_same_in_a_process_of_its_own(name: str) -> None:
    registry = registry_with(REMOTE)
    here = answers(build(registry, executor=name))
    assert answers(build(registry, executor={"name": "remote", "inner": name})) == here


def test_its_process_ends_if_the_engine_cannot_be_built() -> None:
    swapping: dict[str, Any] = {"preemption": "swap", "block_allocator": "contiguous"}
    with pytest.raises(SettingsError, match="reserves blocks"):
        build(registry_with(REMOTE), executor="remote", **swapping)
    assert not multiprocessing.active_children()


class TestParts:
    def parts(self, **settings: Any) -> ExecutorParts:
        registry = registry_with(REMOTE)
        made = settings_class(registry)(**{**SMALL, **settings})
        return ExecutorParts(settings=made, registry=registry, needs_host_blocks=True)

    def test_of_an_executor_survive_a_round_trip(self) -> None:
        parts = self.parts(executor={"name": "remote", "inner": "local"})
        copy = pickle.loads(pickle.dumps(parts))
        assert copy == parts
        assert pickle.loads(pickle.dumps(copy)) == parts
        assert copy.registry.get("executor", "remote") == REMOTE

    def test_of_a_runner_and_of_attention_survive_a_round_trip(self) -> None:
        settings = self.parts().settings
        for parts in (RunnerParts(settings=settings), AttentionParts(settings=settings)):
            assert pickle.loads(pickle.dumps(parts)) == parts

    @pytest.mark.parametrize("chosen", ["auto", "native", "transformers"])
    def test_build_the_same_after_a_round_trip(self, chosen: str) -> None:
        parts = self.parts(runner=chosen, attention="torch")
        copy = pickle.loads(pickle.dumps(parts))
        runner = copy.make_runner()
        assert type(runner) is type(parts.make_runner())
        attention = copy.make_attention(runner.layers)
        assert type(attention) is type(parts.make_attention(runner.layers))

    def test_know_a_blocked_plugin(self) -> None:
        registry = Registry.discover(block=["bench"])
        copy = pickle.loads(pickle.dumps(registry))
        assert copy == registry
        assert copy.notes == registry.notes != ()


class Unpicklable:
    """A processor that holds what cannot be pickled."""

    def __init__(self) -> None:
        self.grammar = (token for token in range(3))

    def __call__(self, output: Sequence[int], logits: Any) -> Any:
        return logits


def unpicklable() -> list[Any]:
    def local(output: Sequence[int], logits: Any) -> Any:
        return logits

    return [lambda _, logits: logits, local, Unpicklable()]


class TestRequests:
    @pytest.mark.parametrize("number", range(3))
    def test_with_an_unpicklable_processor_are_refused(self, number: int) -> None:
        processor = unpicklable()[number]
        name = ["<lambda>", "local", "Unpicklable"][number]
        engine = build(registry_with(PICKLING), executor="pickling")
        bad = make_request("A", SamplingParams(logits_processors=[favour_token_9, processor]))
        with pytest.raises(RequestError, match="cannot be pickled") as refused:
            engine.add(bad)
        assert "request 'A'" in str(refused.value)
        assert f"{name}, which" in str(refused.value)
        assert "module level" in str(refused.value)
        assert not engine.has_unfinished

    def test_are_served_where_steps_stay_in_this_process(self) -> None:
        engine = build(registry_with(), executor="memory")
        engine.add(make_request("A", SamplingParams(logits_processors=unpicklable())))
        while engine.has_unfinished:
            engine.step()


@pytest.mark.usefixtures("compiled_kernels")
class TestPicklingEveryStep(ExecutorConformance):
    """Every field of a step or a result can be sent to another process."""

    component = "pickling"

    def make_registry(self) -> Registry:
        return registry_with(PICKLING)
