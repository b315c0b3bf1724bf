"""Conformance of length predictors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product, repeat
from typing import Any, ClassVar, cast

from paged_core.checked.answers import LengthAnswers
from paged_core.engine.contexts import SlotContext
from paged_core.ids import SeqId
from paged_core.interfaces.length_predictor import ExpectedLength, LengthPredictor
from paged_core.interfaces.observer import Observer
from paged_core.request import FinishReason, Request
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, SequenceState
from paged_testing.engines import memory_settings
from paged_testing.happenings import happens_in_turn
from paged_testing.policy_subjects import (
    NUM_TENANTS,
    extreme_requests,
    requests_of_tenants,
    untouched,
    waiting_groups,
    written_requests,
)
from paged_testing.repeats import ServesEveryWorkload
from paged_testing.use import instructions
from paged_testing.workloads import brief, unlike


class LengthPredictorConformance(ServesEveryWorkload):
    """Subclass it for a length predictor. State what it must expect by :meth:`expected`::

    class TestHalf(LengthPredictorConformance):
        component = "half"

        def expected(self, request):
            return ExpectedLength(request.sampling.max_tokens / 2)
    """

    slot: ClassVar[str] = "length_predictor"
    settings: ClassVar[Mapping[str, Any]] = {"queue_order": "sjf"}

    def expected(self, request: Request, /) -> ExpectedLength | None:
        """Return what is expected before any request has ended; ``None``: not specified."""
        return None

    def make(self) -> LengthPredictor:
        """A fresh predictor."""
        values = {**self.settings, self.slot: self._table}
        made = self.build(SlotContext(settings=memory_settings(self.registry, **values)))
        assert isinstance(made, LengthPredictor)
        return made

    def test_expects_lengths_of_written_requests(self) -> None:
        self.check_answers(0)
        predictor = self.make()
        for request in _requests():
            wanted = self.expected(request)
            got = predictor.expect(request)
            assert wanted is None or got == wanted, f"of {request} it expects {got}, not {wanted}"

    def test_requests_that_have_gone_do_not_matter(self) -> None:
        """Others come to have their ids."""
        predictor = self.make()
        for request in written_requests():
            again = replace(request, id="again")
            found, alone = predictor.expect(again), self.make().expect(again)
            assert found == alone, f"of {again} it expects {found}, {alone} if none was before it"

    def test_expects_lengths_after_requests_have_ended(self) -> None:
        for count in (39, 300):
            self.check_answers(count)

    def test_a_call_costs_the_same_after_few_requests_and_many(self) -> None:
        costs = []
        for count in (256, 2048):  # more than a window holds
            predictor, ended = self.make(), _ended(count)
            _tell(predictor, ended[:-4])
            ask = partial(_ask, predictor, [group.request for group in ended[-4:]])
            tell = partial(_tell, predictor, ended[-4:])
            costs.append(
                sum(instructions(each, self.package, everywhere=True) for each in (ask, tell))
            )
        assert costs[1] <= 2 * costs[0] + 8, (
            f"it takes {costs[0]} instructions after 256 requests, {costs[1]} after 2048"
        )

    def test_expects_a_length_whatever_has_ended(self) -> None:
        """Asked after each of many lengths, none or large, equal and nearly so, where squares lose
        digits, as those of means do that are no whole numbers."""
        firsts = (0, 1, 5, 3_000, 100_000_000)
        ended = [_lasting([*repeat(each, 7), each + 1, *repeat(each, 240)]) for each in firsts]
        ended += [_lasting([n] * 16, 5, more=[1] * k) for n, k in product((5, 40), range(1, 5))]
        for groups in ended:
            predictor = self.make()
            for group in groups:
                _tell(predictor, [group])
                _ask(predictor, [group.request])

    def test_expects_the_length_of_a_sequence_however_many_a_request_has(self) -> None:
        """Twins that were told of requests of one sequence or four, which are as long on the
        average, and of short prompts or long ones, and are asked about one sequence or three."""
        found = list[list[float | None]]()
        for length, more, n in (
            (5, (0,), 1),
            (5, (-20, 0, -1, 21), 1),
            (100, (0,), 1),
            (5, (0,), 3),
        ):
            usual, predictor = replace(written_requests()[0], prompt=(1,) * length), self.make()
            asked = [
                replace(each, prompt=usual.prompt, sampling=replace(each.sampling, n=n))
                for each in _requests()
            ]
            before = _ask(predictor, asked)
            _tell(predictor, [*_lasting([40] * 200, len(more), more=more, usual=usual)])
            answers = zip(_ask(predictor, asked), before, strict=True)
            found.append([each.tokens if each and each != old else None for each, old in answers])
        for request, *tokens in zip(_requests(), *found, strict=True):
            learned = [each for each in tokens if each is not None] or [1]
            assert max(learned) <= 1.5 * min(learned), (
                f"of {brief(request)} it expects {tokens} tokens where sequences of 40 have ended: "
                "one of each request, four of 20, 40, 39 and 61, one after 100 tokens, and one "
                "where it asks for three: tokens are the mean that each sequence generates"
            )

    def check_answers(self, count: int) -> None:
        """Check that answers are lengths which follow from the request and what ended alone, where
        those that ended had ids of their own, and where all had the same, one after the other."""
        predictor, twin = self.make(), self.make()
        requests, ended = _requests(), _ended(count)
        before = _ask(predictor, requests)
        with untouched(ended):
            _tell(twin, _ended(count, "again"))
            _tell(predictor, ended[: len(ended) // 5])
            _ask(predictor, requests)
            _tell(predictor, ended[len(ended) // 5 :])
        fresh = _ask(self.make(), requests)
        assert fresh == before, (
            f"another, of an engine where nothing has ended, expects {fresh}, before {before}: "
            "they share state"
        )
        assert predictor.learns == self.make().learns, (
            f"learns is {predictor.learns} after other requests have ended, and was not before: a "
            "queue looks at it when it is made"
        )
        answers = _ask(predictor, requests[::-1])[::-1]  # first about those it was asked last
        assert predictor.learns or answers == before, (
            "its answers have changed since other requests ended; set learns = True, or a queue "
            "keeps the order of earlier ones"
        )
        assert not predictor.learns or isinstance(predictor, Observer), (
            "learns is True, and it is no Observer: the engine tells it nothing"
        )
        again = _ask(predictor, requests)
        assert again == answers, f"asked again it expects {again}, before {answers}"
        of_twin = [twin.expect(replace(request)) for request in requests]
        assert of_twin == answers, (
            f"it expects {answers}, a second one that was told of equal requests, which had one id "
            f"after the other, {of_twin}: runs cannot be repeated"
        )

    def test_being_asked_changes_nothing(self) -> None:
        """Asked about more tenants than it may remember, the first of them last, and of others."""
        asked, twin = self._crowded(), self._crowded()
        usual = written_requests()[0]
        _ask(asked, requests_of_tenants(usual, 2 * NUM_TENANTS)[::-1])
        for each in (asked, twin):
            _tell(each, [*_lasting([9], tenants="new")])
        found, of_twin = (_ask(each, requests_of_tenants(usual)) for each in (asked, twin))
        differ = [
            n for n, (one, other) in enumerate(zip(found, of_twin, strict=True)) if one != other
        ]
        assert not differ, (
            f"of tenants {differ[:9]} it expects {[found[n] for n in differ[:9]]}, a second one "
            f"that was not asked {[of_twin[n] for n in differ[:9]]}: being asked changes what it "
            "remembers"
        )

    def _crowded(self) -> LengthPredictor:
        """A predictor that was told of many tenants, of four answers to each."""
        predictor, lengths = self.make(), [1 + n % 13 for n in range(NUM_TENANTS)]
        of_each = zip(*(_lasting(lengths, tenants="t") for _ in range(4)), strict=True)
        _tell(predictor, [*chain.from_iterable(of_each)])
        return predictor

    def answers(self, beside: Mapping[str, Any] | None = None) -> dict[str, list[Any]]:
        crowded = _ask(self._crowded(), requests_of_tenants(written_requests()[0]))
        return {**super().answers(beside), "many tenants": crowded}

    def uses(self) -> Callable[[int], object]:
        """Requests that compete or fail, questions about others, answers to ever longer prompts."""
        asked, serves, engine = self.make(), super().uses(), self.make_engine()

        def use(number: int) -> None:
            serves(number)
            happens_in_turn(engine, number)
            _ask(asked, unlike(written_requests()[:2], number))
            usual = replace(written_requests()[0], prompt=(1,) * (number + 1))
            _tell(asked, list(_lasting([9], usual=usual)))

        return use

    def check_written(self) -> None:
        super().check_written()
        self.check_answers(0)
        self.check_answers(39)


def _requests() -> list[Request]:
    """Requests that differ in all that a predictor may look at; half of them ignore ends."""
    written = written_requests()
    exact = [
        replace(each, id=f"{each.id}x", sampling=replace(each.sampling, ignore_eos=True))
        for each in written
    ]
    endless = replace(
        written[0], id="endless", sampling=replace(written[0].sampling, max_tokens=None)
    )
    return [*written, *exact, endless, *extreme_requests()]


def _ended(count: int, name: str = "e{}") -> list[SequenceGroup]:
    """Requests that have ended: by a stop, by their length, by an error, and aborted ones."""
    written, reasons = written_requests(), list(FinishReason)
    requests = [replace(written[n % 8], id=name.format(n)) for n in range(count)]
    groups = waiting_groups(requests)
    for number, group in enumerate(groups):
        (sequence,) = group.sequences
        sequence.tokens += [7] * (number * 5 % 13)
        sequence.finish_reason = reasons[number // 8 % len(reasons)]
        group.live.clear()
    return groups


def _lasting(
    lengths: Sequence[int],
    num: int = 1,
    tenants: str = "",
    more: Sequence[int] = (),
    usual: Request | None = None,
) -> Iterator[SequenceGroup]:
    """Yield requests of so many sequences that have ended after so many tokens each, which take no
    memory; of a tenant, or of one each that is named so. The first sequences have some more."""
    usual = replace(usual or written_requests()[0], sampling=SamplingParams(n=num))
    for number, length in enumerate(lengths):
        tenant = f"{tenants}{number}" if tenants else "a"
        request = replace(usual, id=f"e{number}", tenant=tenant)
        (group,) = waiting_groups([request])
        group.sequences += [SequenceState(SeqId(at), group, at, []) for at in range(1, num)]
        for sequence, extra in zip(group.sequences, chain(more, repeat(0)), strict=False):
            tokens = range(len(request.prompt) + length + extra)
            sequence.tokens = cast("list[int]", tokens)
            sequence.finish_reason = FinishReason.LENGTH
        group.live.clear()
        yield group


def _ask(predictor: LengthPredictor, requests: Sequence[Request]) -> list[ExpectedLength | None]:
    answers = [predictor.expect(request) for request in requests]
    for answer, request in zip(answers, requests, strict=True):
        LengthAnswers().expect(answer, request)
    return answers


def _tell(predictor: LengthPredictor, ended: Sequence[SequenceGroup]) -> None:
    if isinstance(predictor, Observer):
        for group in ended:
            predictor.on_request(group, "finished")
