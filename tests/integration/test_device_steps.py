"""Steps on an emulated device, driven by hand: what they write, read and raise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from emulation.accelerator import EmulatedGraph
from integration import tiny_models
from integration.step_driver import StepDriver, load_runner, make_executor, settings
from paged_backends.executors import decode_graphs
from paged_backends.executors.decode_graphs import graph_sizes
from paged_core.ids import BlockId, SeqId
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput
from unit.capturable_attention import CapturableAttention
from unit.test_attention_plans import NoReads

pytestmark = pytest.mark.heavy


SIZE = 4
PROMPTS = [[3, 5, 7, 11, 13, 17, 19], [23, 29, 31], [40, 41, 42, 43, 44]]
NUM_TOKENS = 6


@pytest.fixture(scope="module")
def greedy(llama: Path) -> list[list[int]]:
    return tiny_models.generate(llama, PROMPTS, NUM_TOKENS)


def make(llama: Path, *, runner: Any = None, eager: bool = False, blocks: int = 40) -> Any:
    """An executor that is not started, over attention that can be captured."""
    chosen = settings(
        llama, block_size=SIZE, num_blocks=blocks, max_model_len=48, enforce_eager=eager
    )
    return make_executor(
        chosen,
        needs_host_blocks=True,
        runner=runner or load_runner(chosen, "native"),
        attention=CapturableAttention(),
        emulated=True,
    )


def new(number: int, sampling: SamplingParams | None = None) -> NewSequence:
    prompt = PROMPTS[number]
    return NewSequence(
        id=SeqId(number),
        request_id=str(number),
        tokens=list(prompt),
        num_prompt_tokens=len(prompt),
        num_computed=0,
        blocks=[BlockId(8 * number + place) for place in range(4)],
        sampling=sampling or SamplingParams(max_tokens=None),
    )


def prefill(*added: NewSequence) -> StepInput:
    counts = [len(sequence.tokens) for sequence in added]
    return StepInput(
        number=0, sequence_ids=[one.id for one in added], num_tokens=counts, added=list(added)
    )


def decode(*ids: int) -> StepInput:
    return StepInput(number=1, sequence_ids=[SeqId(n) for n in ids], num_tokens=[1] * len(ids))


# ---------------------------------------------------------------------- graphs


def test_sizes_of_graphs_go_up_to_what_may_run() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(27) == [1, 2, 4, 8, 16, 24, 27]
    assert graph_sizes(4000)[-2:] == [504, 512]


def test_rows_to_spare_write_nowhere(llama: Path, greedy: list[list[int]]) -> None:
    executor = make(llama)
    executor.start()
    caches = executor._loaded.cache.layers
    for cache in caches:
        cache.fill_(1e4)
    handles = [executor.submit(prefill(new(0), new(1), new(2)))]
    handles += [executor.submit(decode(0, 1, 2)) for _ in range(NUM_TOKENS - 1)]
    drawn = [executor.collect(handle).token_ids for handle in handles]
    assert [list(column) for column in zip(*drawn, strict=True)] == greedy
    backend = executor._loaded.backend
    assert backend.captured == [8, 4, 2, 1]
    assert backend.num_updates == NUM_TOKENS - 1, "three sequences run in the graph for four"
    for cache in caches:
        slots = cache.flatten(1, 2)
        for number, prompt in enumerate(PROMPTS):
            first = 8 * number * SIZE
            end = first + len(prompt) + NUM_TOKENS - 1
            assert (slots[:, first:end] != 1e4).all()
            assert (slots[:, end : first + 8 * SIZE] == 1e4).all()


@pytest.mark.parametrize("fitting_rows", [8, 2])
def test_the_graph_of_a_step_takes_the_best_tokens_if_that_is_all_it_is_asked_for(
    llama: Path, greedy: list[list[int]], monkeypatch: pytest.MonkeyPatch, fitting_rows: int
) -> None:
    """Where the logits of so many rows are not too large; it ends with tokens and their logits."""
    runner = load_runner(settings(llama, block_size=SIZE), "native")
    monkeypatch.setattr(decode_graphs, "_MAX_LOGITS", fitting_rows * runner.vocab_size * 4)
    replayed: list[tuple[int, ...]] = []
    replay = EmulatedGraph.replay

    def note(graph: EmulatedGraph) -> None:
        replayed.append(tuple(graph.output.shape))
        replay(graph)

    monkeypatch.setattr(EmulatedGraph, "replay", note)
    executor = make(llama, runner=runner)
    executor.start()
    hidden = (4, runner._decoder.config.hidden_size)
    sampled = new(1, SamplingParams(temperature=1.0, max_tokens=None))
    steps = [
        prefill(new(0), sampled, new(2)),
        *(decode(0, 2), decode(0, 1, 2), decode(0, 2)),
        replace(prefill(new(1)), removed=[SeqId(1)]),
        decode(0, 1, 2),
    ]
    handles = [executor.submit(step) for step in steps]
    drawn = [executor.collect(handle).token_ids for handle in handles]
    first, other, last = greedy
    assert replayed == [(2, 2), hidden, (2, 2), (2, 4) if fitting_rows >= 4 else hidden]
    assert [tokens[0] for tokens in drawn[:4]] == first[:4]
    assert [tokens[-1] for tokens in drawn[:4]] == last[:4]
    assert drawn[4:] == [other[:1], [first[4], other[1], last[4]]]


def test_a_runner_that_cannot_be_captured_is_named_and_served(
    llama: Path, greedy: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(settings(llama, block_size=SIZE), "native")
    forward, refuses = runner.forward, [True]

    def waits(*arguments: Any) -> Any:
        if refuses[0]:
            raise RuntimeError("operation not permitted when stream is capturing")
        return forward(*arguments)

    monkeypatch.setattr(runner, "forward", waits)
    executor = make(llama, runner=runner)
    with capture_logs() as logs:
        executor.start()
    refuses[0] = False
    (line,) = [line for line in logs if line["event"] == "graphs_off"]
    assert "NativeRunner and CapturableAttention cannot be captured" in line["reason"]
    assert "operation not permitted" in line["reason"]
    size = executor.model_size()
    assert size is not None
    assert size.graphs == f"none: {line['reason']}"
    first = executor.submit(prefill(new(0)))
    second = executor.submit(decode(0))
    drawn = executor.collect(first).token_ids + executor.collect(second).token_ids
    assert drawn == greedy[0][:2]


# ---------------------------------------------------------------------- launching and collecting


@pytest.mark.parametrize("eager", [True, False])
def test_launching_a_step_reads_nothing_that_the_device_makes(llama: Path, eager: bool) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=None)
    executor = make(llama, eager=eager)
    executor.start()
    assert bool(executor._loaded.backend.captured) is not eager
    size = executor.model_size()
    assert size is not None
    assert size.graphs == ("none: enforce_eager is set" if eager else "4 sizes, up to 8 sequences")
    handles = [executor.submit(prefill(new(0, sampling), new(1)))]
    with NoReads("numpy"):  # of pinned memory
        handles += [executor.submit(decode(0, 1)) for _ in range(3)]
    results = [executor.collect(handle) for handle in handles]
    assert [len(result.token_ids) for result in results] == [2] * 4
    assert all(set(result.seconds) == {"prepare", "model", "sample"} for result in results)


def test_a_step_that_needs_the_host_waits_for_those_before_it(
    llama: Path, greedy: list[list[int]]
) -> None:
    executor = make(llama)
    executor.start()
    asking = new(1, SamplingParams(logprobs=1, max_tokens=None))
    handles = [
        executor.submit(step)
        for step in (prefill(new(0)), decode(0), prefill(asking), decode(0, 1), decode(0))
    ]
    results = [executor.collect(handle) for handle in handles]
    mine = [
        token
        for result in results
        for seq_id, token in zip(result.sequence_ids, result.token_ids, strict=True)
        if seq_id == 0
    ]
    assert mine == greedy[0][:4]
    assert [result.logprobs is None for result in results] == [True, True, False, False, True]


def test_results_of_sequences_that_are_gone_change_nothing(
    llama: Path, greedy: list[list[int]]
) -> None:
    executor = make(llama)
    executor.start()
    first = executor.submit(prefill(new(0)))
    second = executor.submit(decode(0))
    third = executor.submit(replace(prefill(new(1)), removed=[SeqId(0)]))  # in the same row
    fourth = executor.submit(decode(1))
    drawn = [executor.collect(handle).token_ids for handle in (first, second, third, fourth)]
    assert drawn == [*([token] for token in greedy[0][:2]), *([token] for token in greedy[1][:2])]
    fifth = executor.submit(decode(1))
    assert executor.collect(fifth).token_ids == [greedy[1][2]]


def test_more_sequences_than_the_device_draws_for(llama: Path, greedy: list[list[int]]) -> None:
    driver = StepDriver(make(llama, blocks=400), SIZE)
    sequences = [driver.add(PROMPTS[number % 3]) for number in range(80)]
    for _ in range(3):
        driver.step([(s, len(s.tokens) - s.num_computed) for s in sequences])
    assert [s.output for s in sequences] == [greedy[number % 3][:3] for number in range(80)]
    for sequence in sequences[3:]:
        driver.remove(sequence)
    driver.step([(sequence, 1) for sequence in sequences[:3]])
    assert [s.output for s in sequences[:3]] == [output[:4] for output in greedy]


# ---------------------------------------------------------------------- failing


def test_rows_that_are_not_finite_fail_alone(
    llama: Path, greedy: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(settings(llama, block_size=SIZE), "native")
    logits, broken = runner.logits, {"row": -1}

    def damaged(hidden: torch.Tensor) -> torch.Tensor:
        made = logits(hidden).clone()
        if broken["row"] >= 0:
            made[broken["row"]] = float("nan")
        return made

    monkeypatch.setattr(runner, "logits", damaged)
    executor = make(llama, runner=runner)
    executor.start()
    broken["row"] = 1
    sampled = SamplingParams(temperature=1.0, max_tokens=None)
    first = executor.submit(prefill(new(0), new(1, sampled), new(2)))
    second = executor.submit(decode(0, 1, 2))
    result = executor.collect(first)
    assert (result.sequence_ids, list(result.failed)) == ([0, 2], [1])
    assert "the logits hold NaN" in result.failed[SeqId(1)]
    assert result.token_ids == [greedy[0][0], greedy[2][0]]
    later = executor.collect(second)
    assert (later.sequence_ids, list(later.failed)) == ([0, 2], [1])
    assert later.token_ids == [greedy[0][1], greedy[2][1]]


def test_logits_that_are_not_wanted_fail_nothing(
    llama: Path, greedy: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph computes logits for each of its rows, also in the middle of a prompt."""
    runner = load_runner(settings(llama, block_size=SIZE), "native")
    best_tokens, damage = runner.best_tokens, torch.zeros(1)

    def damaged(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, peaks = best_tokens(hidden)
        return tokens, peaks + damage

    monkeypatch.setattr(runner, "best_tokens", damaged)
    executor = make(llama, runner=runner)
    executor.start()
    token = StepInput(number=0, sequence_ids=[SeqId(0)], num_tokens=[1])
    damage.fill_(float("nan"))
    for step in [replace(token, added=[new(0)]), *[token] * (len(PROMPTS[0]) - 2)]:
        result = executor.collect(executor.submit(step))
        assert (result.sequence_ids, result.token_ids, result.failed) == ([], [], {})
    damage.zero_()
    assert executor.collect(executor.submit(token)).token_ids == greedy[0][:1]


def test_a_step_that_needs_the_host_fails_with_the_step_that_it_waits_for(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_runner(settings(llama, block_size=SIZE), "native")
    executor = make(llama, runner=runner, eager=True)
    executor.start()
    asking = new(1, SamplingParams(logprobs=1, max_tokens=None))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "forward", lambda *_: 1 // 0)
        failing = executor.submit(prefill(new(0)))
        with pytest.raises(ZeroDivisionError):
            executor.submit(prefill(asking))
        with pytest.raises(ZeroDivisionError):
            executor.collect(failing)
