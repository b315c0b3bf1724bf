"""Conformance of victims, which choose who is preempted, and of preemptions, which choose how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from math import inf
from typing import Any, ClassVar

import pytest

from paged_core.cache.kv_cache import KVCache
from paged_core.engine.contexts import PreemptionContext, VictimContext
from paged_core.interfaces.length_predictor import LengthPredictor
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.victim import Victim
from paged_core.request import Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup
from paged_testing.component import ComponentConformance
from paged_testing.engines import build_memory_engine, serve
from paged_testing.policy_subjects import (
    NUM_DRAWN,
    WRITTEN_SHARES,
    WrittenLengths,
    check_costs_by_length,
    drawn_numbers,
    drawn_requests,
    empty_cache,
    extreme_requests,
    forked_requests,
    growing_groups,
    let_go,
    long_groups,
    preempt,
    running_groups,
    untouched,
    waiting_groups,
    written_requests,
)
from paged_testing.repeats import ServesEveryWorkload
from paged_testing.served import check_served, check_serves_what_fits
from paged_testing.use import instructions
from paged_testing.workloads import SITUATIONS, Workload, brief, unlike


class PreemptionCases(ComponentConformance):
    """The cases of :class:`~paged_testing.PreemptionConformance`."""

    slot: ClassVar[str] = "preemption"

    def expected(self, group: SequenceGroup, /) -> PreemptionMode | None:
        """Return how the group must be preempted; ``None``: any answer will do."""
        return None

    def make(self, block_size: int = 4) -> Preemption:
        """A fresh component."""
        made = self.build(PreemptionContext(block_size=block_size))
        assert isinstance(made, Preemption)
        return made

    # ------------------------------------------------------------------ written cases

    def test_answers_for_written_requests(self) -> None:
        self.check_modes(written_requests(), WRITTEN_SHARES)
        self.check_modes(written_requests(), WRITTEN_SHARES[::-1])
        self.check_modes(extreme_requests(), [0] * len(extreme_requests()))
        for number in range(NUM_DRAWN):
            self.check_modes(drawn_requests(number), drawn_numbers(number))
        self.check_reservations(extreme_requests(), [0] * len(extreme_requests()), 4)

    def test_answers_for_groups_of_which_sequences_have_ended(self) -> None:
        """And which share what they have, short prompts and long ones."""
        for requests, ended in forked_requests():
            wholes = [len(each.prompt) - 1 for each in requests]
            self.check_modes(requests, wholes, ended)
            self.check_reservations(requests, wholes, 4, ended)

    def test_groups_that_have_gone_do_not_matter(self) -> None:
        """Others come to be where they were in memory, and get their ids."""
        asked, written, cache = self.make(), written_requests(), empty_cache(self.registry)
        for request, share in zip((*written, *written[::-1]), WRITTEN_SHARES * 2, strict=True):
            groups = running_groups(cache, [replace(request, id="again")], [share])
            found, alone = (
                (each.mode(groups[0]), each.tokens_to_reserve(groups[0]))
                for each in (asked, self.make())
            )
            assert found == alone, (
                f"of {brief(request)} it says {found}, and {alone} where none was before it: keep "
                "nothing by the id of a request or of an object, which others get"
            )
            cache.release_group(groups[0])
            let_go(groups)

    def test_what_it_said_before_a_group_grew_does_not_matter(self) -> None:
        """Answers become far longer than prompts, and some groups are preempted."""
        asked = self.make()
        for _, groups in growing_groups(self.registry):
            for group in groups * 8:
                mode, fresh = asked.mode(group), self.make().mode(group)
                assert mode is fresh, (
                    f"it says {mode} of {group}, about which it was asked before that grew, and "
                    f"{fresh} where it was not: it must depend on the group alone"
                )
                self._check_reservation((self.make(), asked), group, 4)

    @pytest.mark.parametrize("block_size", [1, 3, 4, 16])
    def test_reserves_for_written_requests(self, block_size: int) -> None:
        self.check_reservations(written_requests(), WRITTEN_SHARES, block_size)

    def test_reserves_for_one_of_several_sequences(self) -> None:
        """Each of four is at its end, and as long as the others."""
        several = SamplingParams(n=4, max_tokens=1)
        requests = [replace(each, sampling=several) for each in written_requests()]
        wholes = [len(each.prompt) - 1 for each in requests]
        self.check_reservations(requests, wholes, 1)

    def test_refuses_nothing_that_fits_alone(self) -> None:
        check_serves_what_fits(build_memory_engine(self.registry, preemption=self._table))

    @pytest.mark.parametrize("num_host_blocks", [0, 1, 3, 8, 40])
    def test_serves_with_so_many_host_blocks(self, num_host_blocks: int) -> None:
        for name in ("three requests grow until one is preempted", "two forked groups compete"):
            values = SITUATIONS[name].values({"preemption": self._table})
            self.check_swaps(values, SITUATIONS[name].workload, num_host_blocks)

    @pytest.mark.parametrize("method", ["mode", "tokens_to_reserve"])
    def test_a_call_costs_the_same_for_short_requests_and_long(self, method: str) -> None:
        def calls(prompt: int, answer: int, asked: bool) -> Callable[[], object]:
            _, groups = long_groups(self.registry, prompt, answer, asked, 16)
            ask = getattr(self.make(), method)
            return lambda: [ask(group) for group in groups]

        check_costs_by_length(calls, self.package, f"{method}() of 4 that run")

    # ------------------------------------------------------------------ what is checked

    def check_modes(
        self, requests: Sequence[Request], computed: Sequence[int], ended: Sequence[int] = ()
    ) -> None:
        """Check that it returns modes that depend on the group alone."""
        preemption, twin = self.make(), self.make()
        groups = self._groups(requests, computed, ended)
        twins = [twin.mode(group) for group in reversed(groups)][::-1]
        for group, of_twin in zip(groups, twins, strict=True):
            with untouched([group]):
                mode = preemption.mode(group)
            assert isinstance(mode, PreemptionMode), f"{mode!r} is no PreemptionMode"
            assert mode is not PreemptionMode.SWAP or preemption.may_swap, (
                "it swaps, but may_swap is False, so there are no host blocks"
            )
            again = preemption.mode(group)
            assert again is mode is of_twin, (
                f"for the same group, it must return the same mode, not {mode}, {again}, {of_twin}"
            )
            wanted = self.expected(group)
            assert wanted is None or mode is wanted, (
                f"the mode of {group} is {mode}, not {wanted}; its sequences have computed "
                f"{[each.num_computed for each in group.sequences]} tokens, and live are "
                f"{[each.index for each in group.live]}"
            )

    def check_reservations(
        self,
        requests: Sequence[Request],
        computed: Sequence[int],
        block_size: int,
        ended: Sequence[int] = (),
    ) -> None:
        """Check that it reserves between the present and the maximum length."""
        twins = self.make(block_size), self.make(block_size)
        for group in self._groups(requests, computed, ended):
            self._check_reservation(twins, group, block_size)

    def _check_reservation(
        self, twins: tuple[Preemption, Preemption], group: SequenceGroup, block_size: int
    ) -> None:
        with untouched([group]):
            tokens = twins[0].tokens_to_reserve(group)
        assert tokens is None or type(tokens) is int, (
            f"tokens_to_reserve() returned {tokens!r}, and may return an int or None"
        )
        again = [each.tokens_to_reserve(group) for each in twins]
        assert again == [tokens, tokens], (
            f"for the same group, it must reserve the same number of tokens, not {tokens} and "
            f"{again}"
        )
        longest = max(len(sequence.tokens) for sequence in group.live)
        whole = -(-group.max_length // block_size) * block_size
        assert tokens is None or longest <= tokens <= whole, (
            f"{tokens} tokens are reserved for a sequence that has {longest} and may grow "
            f"to {group.max_length}"
        )

    def check_swaps(
        self, values: Mapping[str, Any], workload: Workload, num_host_blocks: int
    ) -> None:
        """Check a workload, and that it is swapped only where that is possible."""
        recorder = _SwapRecorder()
        values = {**values, "num_host_blocks": num_host_blocks}
        engine = build_memory_engine(self.registry, observers=[recorder], **values)
        check_served(engine, workload, serve(engine, workload))
        assert not recorder.swapped or (self.make().may_swap and num_host_blocks), (
            f"{recorder.swapped} groups were swapped to {num_host_blocks} host blocks"
        )

    def _groups(
        self, requests: Sequence[Request], computed: Sequence[int], ended: Sequence[int]
    ) -> list[SequenceGroup]:
        """Some waiting groups, and the same requests running, of which some were preempted."""
        groups = [
            *waiting_groups(requests),
            *running_groups(empty_cache(self.registry, 256), requests, computed, ended),
        ]
        preempt(groups, cycle(range(3)))
        return groups


class _SwapRecorder(Observer):
    def __init__(self) -> None:
        self.swapped = 0

    def on_step(self, step: StepRecord, /) -> None:
        self.swapped += len(step.swapped_out)


class PreemptionConformance(ServesEveryWorkload, PreemptionCases):
    """Subclass it for a preemption. State its mode by overriding :meth:`expected`::

    class TestAlwaysSwap(PreemptionConformance):
        component = "always_swap"

        def expected(self, group):
            return PreemptionMode.SWAP
    """

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Also about groups that are drawn."""
        found, asked = super().answers(beside), self.make()
        found["drawn"] = [
            (asked.mode(group), asked.tokens_to_reserve(group))
            for number in range(NUM_DRAWN)
            for group in self._groups(drawn_requests(number), drawn_numbers(number), ())
        ]
        return found

    def uses(self) -> Callable[[int], object]:
        """Three requests that compete, and groups about which it is asked."""
        cache, asked, serves = empty_cache(self.registry), self.make(), super().uses()

        def use(number: int) -> None:
            serves(number)
            requests = unlike(written_requests()[:2], number)
            for group in running_groups(cache, requests, WRITTEN_SHARES, first=8 * number):
                asked.mode(group)
                asked.tokens_to_reserve(group)
                cache.release_group(group)
            cache.take_changes()

        return use

    def check_written(self) -> None:
        super().check_written()
        self.check_modes(written_requests(), WRITTEN_SHARES)
        self.check_reservations(written_requests(), WRITTEN_SHARES, 4)
        self.test_what_it_said_before_a_group_grew_does_not_matter()


class VictimCases(ComponentConformance):
    """The cases of :class:`~paged_testing.VictimConformance`."""

    slot: ClassVar[str] = "victim"

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup | None:
        """Return the group that must be preempted; ``None``: any answer will do.

        It is also asked where lengths are expected if it reads ``self.context.length_predictor``.

        Args:
            candidates: running groups that hold blocks, worst last; never empty.
            now: seconds.
        """
        return None

    def make(
        self, kv_cache: KVCache | None = None, lengths: LengthPredictor | None = None
    ) -> Victim:
        """A fresh component."""
        cache = kv_cache or empty_cache(self.registry)
        made = self.build(VictimContext(kv_cache=cache, length_predictor=lengths))
        assert isinstance(made, Victim)
        return made

    # ------------------------------------------------------------------ written cases

    @pytest.mark.parametrize("now", [0.0, 50.0])
    def test_chooses_among_written_candidates(self, now: float) -> None:
        self.check_choices(written_requests(), WRITTEN_SHARES, now)
        self.check_choices(written_requests()[::-1], WRITTEN_SHARES[::-1], now)
        self.check_choices(extreme_requests(), [0] * len(extreme_requests()), now)

    def test_chooses_among_drawn_candidates(self) -> None:
        """Such as forks that share most blocks; preempted as often as an option says, or others."""
        for number in range(NUM_DRAWN):
            shares, often = drawn_numbers(number + 1), drawn_numbers(number)
            for lengths in (None, WrittenLengths()):
                drawn = drawn_requests(number), [15, *shares[1:]]
                self.check_choices(*drawn, 3.5, often, lengths=lengths)

    def test_chooses_among_candidates_of_which_sequences_have_ended(self) -> None:
        """And which share what they have, short prompts and long ones."""
        for requests, ended in forked_requests():
            wholes = [len(each.prompt) - 1 for each in requests]
            self.check_choices(requests, wholes, 3.5, ended=ended)

    def test_chooses_among_equal_candidates(self) -> None:
        """And among those that were all preempted often."""
        self.check_choices([written_requests()[0]] * 6, (4,) * 6, 1.0)
        self.check_choices(written_requests(), WRITTEN_SHARES, 5.0, range(100, 108))

    def test_the_work_grows_in_proportion_to_the_candidates(self) -> None:
        """And of many, too, it chooses one."""
        taken, written = list[int](), written_requests()
        for number in (192, 1536):
            cache = empty_cache(self.registry, number)
            requests = [replace(written[each % 8], id=f"r{each}") for each in range(number)]
            requests[1::2] = [unlike([each], at)[0] for at, each in enumerate(requests[1::2])]
            candidates = running_groups(cache, requests, [0] * number, grown=False)
            component = self.make(cache)
            chosen = component.choose(candidates, 5.0)
            assert any(chosen is each for each in candidates), f"of {number} it chose {chosen}"
            choose = partial(component.choose, candidates, 5.0)
            taken.append(
                instructions(choose, self.package, most=20 * sum(taken) + 1000 if taken else inf)
            )
        assert taken[1] < 16 * taken[0] + 400, (
            f"choose() takes {taken[0]} instructions of 192 candidates, {taken[1]} or more of 1536"
        )

    def test_the_work_grows_in_proportion_to_their_blocks(self) -> None:
        taken = list[int]()
        for length in (64, 512):
            cache, candidates = long_groups(self.registry, length, 1, False, block_size=1)
            choose = partial(self.make(cache).choose, candidates, 5.0)
            taken.append(instructions(choose, self.package))
        assert taken[1] < 16 * taken[0] + 400, (
            f"choose() takes {taken[0]} instructions where candidates have 64 blocks, {taken[1]} "
            "where they have 512"
        )

    def test_the_work_does_not_depend_on_how_long_candidates_are(self) -> None:
        """Candidates hold equally many blocks."""

        def calls(*lengths: Any) -> Callable[[], object]:
            cache, candidates = long_groups(self.registry, *lengths)
            return partial(self.make(cache).choose, candidates, 5.0)

        check_costs_by_length(calls, self.package, "choose() of 4 candidates")

    def test_what_it_was_shown_before_does_not_matter(self) -> None:
        """Ask it about others, and then about groups that have arrived since."""
        cache = empty_cache(self.registry)
        component = self.make(cache)
        candidates = running_groups(cache, written_requests(), WRITTEN_SHARES)
        for shown in (candidates[:3], candidates[3:], candidates[2:5], candidates[::-1]):
            chosen = component.choose(list(shown), 1.0)
            assert any(chosen is group for group in shown), f"it chose {chosen}, not of {shown}"

    def test_groups_that_have_gone_do_not_matter(self) -> None:
        """Others come to be where they were in memory, and get their ids; those of a twin stay, and
        in every second turn have ids of their own."""
        caches, written = [empty_cache(self.registry) for _ in range(2)], written_requests()
        component, twin = (self.make(cache, WrittenLengths()) for cache in caches)
        kept = list[list[SequenceGroup]]()
        for turn in range(6):
            own = unlike([*written[turn:], *written[:turn]], turn)
            again = [replace(each, id=f"r{place}") for place, each in enumerate(own)]
            gone, stay = (
                running_groups(cache, requests, [0] * 8, first=8 * turn)
                for cache, requests in zip(caches, (again, again if turn % 2 else own), strict=True)
            )
            kept.append(stay)
            place, of_twin = (
                groups.index(each.choose([*groups], 1.0))
                for each, groups in ((component, gone), (twin, stay))
            )
            assert turn % 2 == 0 or place == of_twin, (
                f"it chose {gone[place]}, and {gone[of_twin]} where groups before were other "
                "objects of other ids: keep nothing by the id of a request or of an object, which "
                "others get"
            )
            for group in gone:
                caches[0].release_group(group)
            del group
            let_go(gone)

    # ------------------------------------------------------------------ what is checked

    def check_choices(
        self,
        requests: Sequence[Request],
        computed: Sequence[int],
        now: float,
        num_preemptions: Sequence[int] = (),
        ended: Sequence[int] = (),
        lengths: WrittenLengths | None = None,
    ) -> None:
        """Check the choices of one component, each time without the groups chosen before, and with
        other lengths expected."""
        is_told = lengths is None or self.expectation_reads("context")
        cache, other = (empty_cache(self.registry, 256) for _ in range(2))
        candidates = running_groups(cache, requests, computed, ended)
        let_go(waiting_groups(requests))
        copies = running_groups(other, requests, computed, ended)
        for groups in (candidates, copies):
            preempt(groups, num_preemptions)
            # the worst is last, and not the newest
            groups.append(groups.pop(len(groups) // 2))
        twin, component = self.make(other, lengths), self.make(cache, lengths)
        while candidates:
            before, free = list(candidates), cache.num_free
            with untouched(before):
                victim = component.choose(candidates, now)
            assert candidates == before, "it changed the list of candidates"
            assert any(victim is group for group in candidates), f"it chose another group: {victim}"
            assert cache.num_free == free, "it freed blocks; that is for the scheduler"
            wanted = self.expected(before, now) if is_told else None
            assert wanted is None or victim is wanted, f"it chose {victim} instead of {wanted}"
            place, again = before.index(victim), copies.index(twin.choose(tuple(copies), now))
            assert again == place, (
                f"it chose {victim}, a second component of equal groups {before[again]}: runs "
                "cannot be repeated"
            )
            candidates = [group for group in before if group is not victim]
            del copies[place]
            if lengths is not None:
                lengths.learned += 1


class VictimConformance(ServesEveryWorkload, VictimCases):
    """Subclass it for a victim component. State the choice by overriding :meth:`expected`::

    class TestOldest(VictimConformance):
        component = "oldest"

        def expected(self, candidates, now):
            return candidates[0]
    """

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        """Also among groups that are drawn."""
        found = super().answers(beside)
        found["drawn"] = []
        for number in range(NUM_DRAWN):
            cache = empty_cache(self.registry)
            groups = running_groups(cache, drawn_requests(number), drawn_numbers(number + 1))
            asked = self.make(cache)
            while groups:
                found["drawn"].append((chosen := asked.choose([*groups], 3.5)).id)
                groups.remove(chosen)
        return found

    def uses(self) -> Callable[[int], object]:
        """Choices until one candidate is left, which is still there in the next use."""
        cache = empty_cache(self.registry)
        component, candidates = self.make(cache), list[SequenceGroup]()

        def use(number: int) -> None:
            requests = unlike(written_requests(), number)
            candidates[:0] = running_groups(cache, requests, WRITTEN_SHARES, first=8 * number)
            while len(candidates) > 1:
                victim = component.choose([*candidates], float(number))
                candidates.remove(victim)
                cache.release_group(victim)
            cache.take_changes()

        return use

    def check_written(self) -> None:
        super().check_written()
        self.check_choices(written_requests(), WRITTEN_SHARES, 5.0)
