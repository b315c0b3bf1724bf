"""Conformance of executors, driven by an engine and step by step."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar
from unittest.mock import patch

import psutil
import pytest

from paged_core.engine.contexts import ExecutorContext
from paged_core.engine.engine import Engine
from paged_core.errors import ExecutorLost, SettingsError
from paged_core.ids import BlockId, SeqId
from paged_core.interfaces.executor import Capacity
from paged_core.plugins.registry import Registry
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.step import StepResult
from paged_testing.chance import decisions_elsewhere
from paged_testing.component import ComponentConformance
from paged_testing.doubles import FailingExecutor
from paged_testing.engines import build_memory_engine, memory_settings, serve, serves_again
from paged_testing.served import check_nothing_leaked
from paged_testing.steps import (
    WHOLE,
    WITH_HOST,
    alike,
    edited,
    kinds,
    moved,
    new_sequence,
    run,
    run_all,
    second_token,
    step_input,
    steps_again,
)
from paged_testing.use import growth, memory_traced, threads_in_turns
from paged_testing.workloads import Workload, simple_request

TIGHT: Sequence[Mapping[str, Any]] = (
    {"scheduler": {"name": "token_budget", "max_num_batched_tokens": 7}},
    {"scheduler": {"name": "prefill_or_decode"}, "preemption": "swap", "num_host_blocks": 40},
    {"block_allocator": {"name": "hash_cached", "merge_duplicates": True}, "preemption": "auto"},
    {"block_allocator": "uncached", "block_size": 3},
)
"""Settings under which blocks run out, are shared, copied, merged and swapped."""

WRITTEN: Sequence[Workload] = (
    Workload(tuple((0, simple_request(name, (1, 2, 3, 1, 2), 9)) for name in "ABC")),
    Workload(
        (
            (0, simple_request("A", (1, 1, 2, 1, 1, 2, 1), 12)),
            (0, simple_request("B", (2, 1, 2), 10, n=3)),
            (2, simple_request("C", (1, 1, 2, 1, 1, 2, 3, 1, 1), 7)),
            (3, simple_request("D", (3,), 4, n=2)),
        )
    ),
)
"""With equal prompts, forks and late arrivals."""


class ExecutorConformance(ComponentConformance):
    """Subclass it for an executor. One with a model names the model and takes few examples::

        class TestMyExecutor(ExecutorConformance):
            component = "my_executor"
            settings = {"model": "demo", "dtype": "float32"}
            max_examples = 8

    Greedy output must be the same alone and in a batch. That needs a model with a clear argmax: in
    16-bit dtypes, ties can be broken differently in another batch.
    """

    slot: ClassVar[str] = "executor"
    max_seconds: ClassVar[float] = 300
    """Seconds of a test: it may load a model, and compile kernels."""

    @contextmanager
    def engine(self, **values: Any) -> Iterator[Engine]:
        """An engine on the executor, closed afterwards."""
        engine = build_memory_engine(
            self.registry, **{**self.settings, **values, "executor": self._table}
        )
        try:
            yield engine
        finally:
            engine.close()

    num_uses: ClassVar[int] = 40

    def uses(self) -> Callable[[int], object]:
        """Sequences of three requests are added, computed and removed."""
        return serves_again(self._small_engine())

    def growth(self) -> tuple[int, float, float]:
        """Also of written steps, of which uses overlap."""
        served, steps = super().growth(), steps_again(self._small_engine().executor)
        stepped = growth(steps, 3 * self.num_uses, self.package, self.bytes_free)
        return max(served[0], stepped[0]), served[1] + stepped[1], served[2] + stepped[2]

    def _small_engine(self) -> Engine:
        values = {**self.settings, "executor": self._table, "max_model_len": 24}
        engine = build_memory_engine(self.registry, num_blocks=7, block_size=4, **values)
        if self._request is not None:
            self._request.addfinalizer(engine.close)
        return engine

    def check_written(self) -> None:
        with suppress(pytest.skip.Exception, SettingsError):
            self.test_returns_results_in_the_order_of_the_batch()

    def other_settings(self) -> list[dict[str, Any]]:
        """The smallest ones: of others it might start many processes."""
        return super().other_settings()[:2]

    # ------------------------------------------------------------------ driven by an engine

    def test_has_the_capacity_that_the_settings_give(self) -> None:
        values: dict[str, Any] = {"num_blocks": 9, "num_host_blocks": 5, "block_size": 4}
        with self.engine(**values, max_model_len=32, preemption="swap") as engine:
            capacity = engine.capacity
            size, ends = capacity.vocab_size, capacity.eos_token_ids
            assert (capacity.num_blocks, capacity.num_host_blocks) == (9, 5), (
                f"num_blocks is 9 and num_host_blocks 5, and start() returns {capacity}"
            )
            assert 0 < capacity.max_model_len <= 32, f"max_model_len is 32: {capacity}"
            assert size is None or size > 0, f"vocab_size is a number above 0 or None: {capacity}"
            assert all(0 <= token < (size or token + 1) for token in ends), (
                f"eos_token_ids are tokens of the vocabulary: {capacity}"
            )

        for given in (None, 0):
            values = {"num_blocks": None, "kv_cache_memory": "8MiB", "num_host_blocks": given}
            with self.engine(**values, preemption="swap") as engine:
                found = engine.capacity.num_host_blocks
                assert (found > 0) == (given is None), (
                    f"num_host_blocks is {given} and needs_host_blocks true, and it has {found}"
                )

    @pytest.mark.parametrize("tight", TIGHT, ids=("budget", "swap", "merge", "plain"))
    def test_written_requests_have_the_same_output_alone_and_in_a_batch(
        self, tight: Mapping[str, Any]
    ) -> None:
        """With blocks shared, copied, merged, swapped and recomputed."""
        values = {"num_blocks": 20, "block_size": 2, **tight}
        with self.engine(block_allocator="uncached") as single, self.engine(**values) as batched:
            for workload in WRITTEN:
                self.check_same_output(single, batched, workload)

    def check_same_output(self, single: Engine, batched: Engine, workload: Workload) -> None:
        """Check that greedy requests generate the same in both engines."""
        workload = Workload(tuple((step, _greedy(r)) for step, r in workload.requests))
        alone = {}
        for _, request in workload.requests:
            one_sequence = replace(request, sampling=replace(request.sampling, n=1))
            (group,) = serve(single, Workload(((0, one_sequence),))).values()
            alone[request.id] = group.sequences[0].output
        for group in serve(batched, workload).values():
            for sequence in group.sequences:
                assert sequence.finish_reason is not FinishReason.ERROR, sequence.error
                output, whole = sequence.output, alone[group.id]
                assert output == whole[: len(output)], f"{sequence}: {output}, alone {whole}"
                assert output == whole or sequence.error, f"{sequence} ended early"
        check_nothing_leaked(batched)

    # ------------------------------------------------------------------ driven step by step

    def sampled(self, *steps: Mapping[str, Any], **values: Any) -> list[StepResult]:
        """The results of steps, each the arguments of :func:`run`, in an engine of their own; which
        are the same again, each submitted before the one before it is collected."""
        known = set[int]()
        for step in steps:
            known.difference_update(step.get("removed", ()))
            known |= {new.id for new in step.get("added", ())}
        first = {**steps[0], "removed": [*known.union(steps[0].get("removed", ()))]}
        with self.engine(**values) as engine:
            try:
                found = run_all(engine.executor, 0, steps, ahead=False)
                again = run_all(engine.executor, len(steps), [first, *steps[1:]], ahead=True)
            except Exception as error:
                error.add_note("lists of a step are empty once it is collected: keep copies")
                raise
        size = engine.capacity.vocab_size
        for one, other in zip(found, again, strict=True):
            assert all(0 <= token < (size or token + 1) for token in one.token_ids), (
                f"tokens are below the vocab_size, {size}, of its capacity: {one.token_ids}"
            )
            assert alike(one, other), (
                f"it returns {one}; {other} where the same steps come again, each submitted before "
                "the one before it is collected: nothing stays of what was removed, and what one "
                "draws follows from its seed, its index and the place"
            )
        return found

    def test_samples_when_the_last_token_is_computed_however_many_at_a_time(self) -> None:
        """Last tokens of prompts, and of more after a preemption; chunks end where prompts do."""
        gone = {"batch": [], "removed": [0]}
        plain, longer = new_sequence(0, 5), replace(new_sequence(0, 7), num_prompt_tokens=4)
        asks = [
            replace(each, sampling=replace(each.sampling, prompt_logprobs=most, logprobs=most))
            for each, most in ((plain, 0), (longer, -1))
        ]
        if not self.sampled({"batch": [(0, 5)], "added": asks[:1]})[0].failed:  # it has them
            plain, longer = asks
        for new in (plain, longer):
            total, found, told = len(new.tokens), list[list[int]](), list[list[Any]]()
            cuts = ((total,), (1, total - 1), (4, total - 4), (2, 2, total - 4), (1,) * total)
            steps = list[Mapping[str, Any]]()
            for counts in cuts:
                first, *others = ({"batch": [(0, count)]} for count in (*counts, 1))
                steps += [{**first, "added": [new]}, *others, gone]
            results = iter(self.sampled(*steps))
            for counts in cuts:
                *early, last, more, none = own = [*islice(results, len(counts) + 2)]
                told.append([e for each in own for e in each.prompt_logprobs.get(new.id, ())])
                for result in (*early, none):
                    check_samples(result, [])
                for result in (last, more):
                    check_samples(result, [0])
                found.append(last.token_ids + more.token_ids)
            assert all(each == found[0] for each in found), f"in other chunks it samples {found}"
            follow = new.tokens[1 : new.num_prompt_tokens] if new in asks else ()
            for entries in told:
                named = [token in each for token, each in zip(follow, entries, strict=False)]
                assert len(entries) == len(follow) and all(named), (
                    f"the prompt tokens {follow} follow others; in chunks their log-probabilities "
                    f"are {told}"
                )

    def test_logits_processors_are_asked_or_fail(self) -> None:
        """An error of one, here of ``int()``, is in ``failed``, and the other sequences go on."""
        given: list[list[Any]] = [[second_token], [int], []]
        added = [
            replace(
                new_sequence(number, 5),
                sampling=SamplingParams(max_tokens=8, ignore_eos=True, logits_processors=each),
            )
            for number, each in enumerate(given)
        ]
        (result,) = self.sampled({"batch": [(number, 5) for number in range(3)], "added": added})
        assert 0 in result.failed or result.token_ids[0] == 2, (
            f"a logits processor chooses token 2; the result is {result}: ask it, or say why not "
            "in `failed`"
        )
        check_samples(result, [0, 2][0 in result.failed :])
        assert 1 in result.failed, f"a logits processor raises, and `failed` is {result.failed}"

    def test_returns_results_in_the_order_of_the_batch(self) -> None:
        """Whatever each asks for, it is as that of the sequence alone."""
        added = kinds()
        orders = [[each] for each in range(len(added))]
        orders += [[*range(len(added))], [2, 4, 0, 5, 1, 3]]
        steps, before = list[Mapping[str, Any]](), list[int]()
        for order in orders:
            news = [added[each] for each in order]
            longer = [new.id for new in news if not new.num_candidates]
            steps += [
                {
                    "batch": [(new.id, len(new.tokens)) for new in news],
                    "added": news,
                    "removed": before,
                },
                {"batch": [(each, 1) for each in longer[::-1]]},
            ]
            before = order
        *alone, first, second, third, last = self.sampled(*steps, num_blocks=32)
        check_samples(first, [0, 1, 2, 4, 4, 4])
        check_samples(second, [4, 2, 1, 0])
        check_samples(third, [2, 4, 4, 4, 0, 1])
        check_samples(last, [1, 0, 4, 2])
        for number, new in enumerate(added):
            for which, others in ((0, (first, third)), (1, (second, last))):
                wanted = _of_one(new.id, alone[2 * number + which])
                for found in (_of_one(new.id, other) for other in others):
                    assert alike(found, wanted), (
                        f"beside others the sequence {number} gets {found}, alone {wanted}"
                    )
            asked = new.sampling.needed_logprobs
            both, most = _of_one(new.id, second)[0], asked or 0
            for token, found in (each for each in both if each[1]):
                first_one, *best = found.items()
                values = [value for _, value in best]
                is_ranked = values == sorted(values, reverse=True) and max(found.values()) <= 0
                are_all = not best or len(best) == most or found[token] >= values[-1]
                assert first_one[0] == token and len(best) <= most and is_ranked and are_all, (
                    f"log-probabilities are wanted of the sampled token {token}, which is the "
                    f"first, and of the {most} best, from the highest on: {found}"
                )
            said = [each for _, each in both]
            assert all((each is None) == (asked is None) for each in said), (
                f"needed_logprobs of the sequence {number} is {asked}, and it gets {said}"
            )

    def test_samples_a_token_for_each_sequence_of_a_fan_out(self) -> None:
        new, drawn = replace(new_sequence(0, 5), fan_out=3), SamplingParams(n=16, temperature=50.0)
        other = replace(new_sequence(1, 5), fan_out=16, sampling=drawn)
        result, after, random, again = self.sampled(
            {"batch": [(0, 5)], "added": [new]},
            {"batch": [(0, 1)]},
            {"batch": [(1, 5)], "added": [other]},
            {"batch": [(1, 1)]},
        )
        check_samples(result, [0, 0, 0])
        check_samples(after, [0])
        assert len({*random.token_ids}) > 1, f"16 sequences draw {random.token_ids}: each its own"
        grown = [*other.tokens, random.token_ids[0]]
        (first,) = self.sampled(
            {"batch": [(1, 6)], "added": [replace(other, tokens=grown, fan_out=1)]}
        )
        check_samples(again, [1], first.token_ids)

    def test_ranks_the_candidates_of_a_beam_and_samples_nothing(self) -> None:
        sampling = SamplingParams(beam_width=4, max_tokens=8, ignore_eos=True)
        new = replace(new_sequence(0, 5), sampling=sampling, num_candidates=8)
        with self.engine() as engine:
            executor = engine.executor
            early = run(executor, 0, [(0, 3)], added=[new])
            assert not early.candidates, "it ranks candidates before all tokens are computed"
            result = run(executor, 1, [(0, 2)])
            check_samples(result, [])
            assert list(result.candidates) == [0], (
                f"the sequence 0 wants candidates, and those of {list(result.candidates)} came"
            )
            found = result.candidates[SeqId(0)]
            ranked = sorted(found.values(), reverse=True)
            assert len(found) == 8 and list(found.values()) == ranked and ranked[0] <= 0, (
                f"8 candidates are wanted, log-probabilities from the highest on: {found}"
            )
            longer = replace(new, tokens=[*new.tokens, next(iter(found))], num_computed=5)
            whole = replace(longer, num_computed=0, blocks=[BlockId(9 + i) for i in range(4)])
            cached = run(executor, 2, [(0, 1)], added=[longer], removed=[0]).candidates[SeqId(0)]
            again = run(executor, 3, [(0, 6)], added=[whole], removed=[0]).candidates[SeqId(0)]
            assert list(again) == list(cached), (
                f"it ranks {list(cached)}, and {list(again)} where all tokens are computed again"
            )

    def test_moves_blocks_in_the_order_swap_out_swap_in_copy(self) -> None:
        """A block is swapped out, swapped in and exchanged for another in one step, then computed
        on: all are read before any is written."""
        both = {"batch": [(0, 3), (1, 3)], "added": [new_sequence(0, 5), new_sequence(1, 7, 21)]}
        moves = {
            **moved("swap_out", {0: 3}),
            **moved("swap_in", {3: 20}),
            **moved("copy", {20: 21, 21: 20}),
            **edited((0, 0, 21), (1, 0, 20)),
        }
        plain, turned = (
            self.sampled(both, {"batch": [(0, 2), (1, 4)], **changes}, **WITH_HOST)[1].token_ids
            for changes in ({}, moves)
        )
        assert turned == plain, (
            f"with first blocks that were moved it samples {turned}, else {plain}"
        )

    def test_starts_again_when_it_was_lost_and_ends_what_it_started(self) -> None:
        """Threads and processes end in close(), which may be called more than once, or alone."""
        with self.engine() as engine:
            parts = ExecutorContext(
                settings=memory_settings(self.registry, **self.settings, executor=self._table),
                registry=self.registry,
                needs_host_blocks=False,
            )
            self.build(parts).close()  # as where start() raises
            engine.executor.close()
            engine.executor.close()
        before, outputs = _started(), []
        with self.engine() as engine:
            for _ in range(2):
                request = _greedy(simple_request("A", (1, 2, 3, 1, 2), 4))
                (group,) = serve(engine, Workload(((0, request),))).values()
                outputs.append(group.sequences[0].output)
                FailingExecutor.install(engine, after={0}, error=ExecutorLost)
                engine.add(request)
                while engine.has_unfinished:
                    engine.step()
        assert outputs[0] == outputs[1], (
            f"it samples {outputs[0]}, and {outputs[1]} after ExecutorLost, when start() was called"
        )
        left = _started() - before
        assert not left, f"after close() there are still {left}"

    def test_keeps_nothing_when_it_starts_again_or_is_closed(self) -> None:
        """A start as after a loss leaves none of many sequences."""
        many = [
            [replace(new_sequence(n + first, 16, 0), request_id=f"{n}") for n in range(150)]
            for first in (0, 150, 300)
        ]
        with memory_traced() as allocated:
            for times in (1, 3):  # what comes with the first one may stay
                held, capacities, sampled = [allocated()], list[Capacity](), list[list[int]]()
                with self.engine(num_blocks=2000, max_model_len=24) as engine:
                    executor = engine.executor
                    for number in range(times):
                        capacities.append(executor.start() if number else engine.capacity)
                        batch, added = [(150 * number, 16)], many[number]
                        sampled.append(run(executor, 2 * number, batch, added=added).token_ids)
                        executor.submit(step_input(2 * number + 1, []))  # and not collected
                        held.append(allocated())
                del engine
                held.append(allocated())
                del executor
        assert capacities == capacities[:1] * 3, f"started again it has the capacities {capacities}"
        assert sampled == sampled[:1] * 3, (
            f"started again it samples {sampled}: the steps are alike, and one that was submitted "
            "before is not collected"
        )
        before, _, once, again, after = held
        assert again - once < self.bytes_free, (
            f"{len(added)} sequences that it had when it was started again still take "
            f"{again - once} bytes"
        )
        assert after - before < self.bytes_free, (
            f"it holds {after - before} bytes after close(), which releases all memory"
        )

    @pytest.mark.parametrize("method", ["submit", "collect"])
    def test_passes_on_what_an_executor_within_it_raises(self, method: str) -> None:
        """Where it passes steps on to the executor ``memory``."""
        inner = self.registry.get("executor", "memory").load()
        for kind in (ExecutorLost, ValueError):
            raises = patch.object(inner, method, side_effect=kind("on purpose"))
            with self.engine() as engine, raises as broken, suppress(kind):
                run(engine.executor, 0, **WHOLE)
                assert not broken.called, (
                    f"{method}() of the executor within it raised {kind.__name__}, and it did not"
                )

    def test_a_step_may_be_submitted_before_the_last_one_is_collected(self) -> None:
        """They run in the order in which they are submitted, also where threads take turns."""
        added = [new_sequence(number, 11) for number in range(16)]
        first: Mapping[str, Any] = {"batch": [(number, 11) for number in range(16)], "added": added}
        steps = [first, *[{"batch": [(number, 1) for number in range(16)]}] * 4]
        plain, ahead = self.sampled(*steps, num_blocks=64), list[StepResult]()
        handles = list[Any]()
        try:
            with threads_in_turns(self.package), self.engine(num_blocks=64) as engine:
                for number, step in enumerate(steps):
                    handles.append(engine.executor.submit(step_input(number, **step)))
                    if number:
                        ahead.append(engine.executor.collect(handles[-2]))
                ahead.append(engine.executor.collect(handles[-1]))
        except Exception as error:
            error.add_note(f"step {len(ahead)} was collected after the next one was submitted")
            raise
        tokens, wanted = ([each.token_ids for each in results] for results in (ahead, plain))
        assert tokens == wanted, f"submitted ahead it samples {tokens}, one by one {wanted}"

    def test_two_executors_in_turns_sample_as_each_alone(self) -> None:
        """Sequences of the two have the same ids, and other tokens."""
        new, more = new_sequence(0, 5), [{"batch": [(0, 1)]}] * 4
        given = (new, replace(new, tokens=[3, 3, 1, 2, 2]))
        steps = [[{**WHOLE, "added": [each]}, *more] for each in given]
        alone = [[each.token_ids for each in self.sampled(*own)] for own in steps]
        together = list[list[list[int]]]([[], []])
        with self.engine() as one, self.engine() as other:
            for number, both in enumerate(zip(*steps, strict=True)):
                for engine, step, found in zip((one, other), both, together, strict=True):
                    found.append(run(engine.executor, number, **step).token_ids)
        assert together == alone, (
            f"beside another it samples {together}, alone {alone}: two executors share nothing, so "
            "keep what one knows in itself, not in its class or module"
        )

    def test_draws_the_same_alone_and_in_another_process(self) -> None:
        """Whose strings have other hashes."""
        settings = {**self.settings, "executor": self._table}
        drawn, alone = _drawn(self.registry, "executor", settings), dict[str, list[Any]]()
        for name in drawn:
            alone |= _drawn(self.registry, "executor", settings, name)
        assert drawn == alone, (
            f"requests at random draw {drawn}, each alone {alone}: what one draws follows from its "
            "seed, its index and the place, and not from what others have drawn"
        )
        for name, tokens in drawn.items():
            assert len({*tokens}) > 1, f"{name} draws {tokens}: for each place another number"
        if _drawn(self.registry, "executor", settings, "B", 1)["B"] != drawn["B"]:
            other = _drawn(self.registry, "executor", {**settings, "seed": 5})
            assert other["A"] != drawn["A"] and other["B"] == drawn["B"], (
                f"with another `seed` in the settings {other} is drawn, else {drawn}: it is for "
                "requests that have none, as A, and for no other, as B, whose seed is 0"
            )
            assert drawn["A"] != drawn["C"], (
                f"A and C, of one prompt and without a seed, draw the same: {drawn}; this "
                "follows from `seed` of the settings and their ids"
            )
        elsewhere = decisions_elsewhere(_drawn, self.registry, "executor", settings)
        assert drawn == elsewhere, (
            f"requests at random draw {drawn}, in another process {elsewhere}: what is drawn "
            "follows from the seed and the place, not from hashes, addresses or global state"
        )


def _drawn(
    registry: Registry, slot: str, settings: Mapping[str, Any], names: str = "ABC", seed: int = 0
) -> dict[str, list[Any]]:
    """Return outputs that requests draw, A and C of one prompt without a seed and B with one."""
    engine = build_memory_engine(registry, **settings)
    asked = [
        Request(
            id=name,
            prompt=prompt,
            sampling=SamplingParams(max_tokens=8, seed=own, temperature=50.0, ignore_eos=True),
        )
        for name, own, prompt in (
            ("A", None, (1, 2, 3, 1, 2)),
            ("B", seed, (2, 1, 3)),
            ("C", None, (1, 2, 3, 1, 2)),
        )
        if name in names
    ]
    try:
        groups = serve(engine, Workload(tuple((0, each) for each in asked)))
        return {name: [*group.sequences[0].output] for name, group in groups.items()}
    finally:
        engine.close()


def _of_one(seq_id: SeqId, result: StepResult) -> tuple[Any, ...]:
    """Return what a result has for a sequence: tokens with log-probabilities, candidates."""
    logprobs = result.logprobs or [None] * len(result.token_ids)
    assert len(logprobs) == len(result.token_ids), f"log-probabilities are parallel: {result}"
    each = zip(result.sequence_ids, result.token_ids, logprobs, strict=True)
    said = [(token, found) for owner, token, found in each if owner == seq_id]
    return said, result.candidates.get(seq_id, {}), result.failed.get(seq_id)


def _started() -> set[object]:
    """Return the threads and the child processes that there are."""
    gc.collect()
    return {*threading.enumerate(), *psutil.Process().children(recursive=True)}


def check_samples(
    result: StepResult, sequence_ids: list[int], token_ids: list[int] | None = None
) -> None:
    """Check for which sequences a step sampled, and what, if that is known."""
    found, tokens = result.sequence_ids, result.token_ids
    assert found == sequence_ids and len(tokens) == len(found), (
        f"it samples {tokens} for the sequences {found}; {sequence_ids} are to get one each: those "
        "of which the step computes the last token, in the order of the batch"
    )
    assert token_ids in (None, tokens), (
        f"it samples {tokens} for the sequences {found}; {token_ids} where they are computed "
        "whole, alone and in blocks of their own"
    )


def _greedy(request: Request) -> Request:
    """The same request, greedy and ignoring end-of-sequence tokens."""
    asked = request.sampling
    return replace(
        request,
        sampling=SamplingParams(n=asked.n, max_tokens=asked.max_tokens, ignore_eos=True),
    )
