"""Calls of components: an error is marked with the one called, an answer is checked before use."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from paged_core.errors import PluginError, blame
from paged_core.ids import SeqId
from paged_core.interfaces.schedule import Schedule
from paged_core.interfaces.scheduler import Scheduler
from paged_core.sequence import SequenceState
from paged_core.step import StepResult

Interface = TypeVar("Interface")


def guarded(component: Interface, slot: str, interface: type, answers: object = None) -> Interface:
    """Return an object that passes calls on to a component, which is its ``inner``.

    What a call raises is marked with the component (:func:`~paged_core.errors.blame`).

    Args:
        interface: that of ``slot``; the object has it, and all that is public in the component.
        answers: methods by the same names, which are called with the answer and the arguments, and
            raise ``PluginError`` if it cannot be acted on.
    """
    kind = type(component)
    members: dict[str, Any] = {"__getattr__": lambda self, name: getattr(component, name)}
    for name in dir(kind):
        if name == "__len__" or not name.startswith("_"):
            member, check = getattr(kind, name), getattr(answers, name, None)
            make = _method if callable(member) else _property
            members[name] = make(component, name, slot, check)
    made: Any = type(kind.__name__, (interface,), members)
    passing = made.__new__(made)
    passing.inner = component
    guard: Interface = passing
    return guard


def _method(component: Any, name: str, slot: str, check: Callable[..., None] | None) -> Any:
    method = getattr(component, name)

    def call(_: Any, *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:
            blame(error, slot, component)
            raise

    def checked_call(_: Any, *args: Any) -> Any:
        try:
            answer = method(*args)
            check(answer, *args)  # type: ignore[misc]
        except Exception as error:
            blame(error, slot, component)
            raise
        return answer

    return call if check is None else checked_call


def _property(component: Any, name: str, slot: str, check: Callable[..., None] | None) -> Any:
    get = attrgetter(name)

    def read(_: Any) -> Any:
        try:
            return get(component)
        except Exception as error:
            blame(error, slot, component)
            raise

    return property(read)


class asking:  # noqa: N801 - used as a statement
    """A block in which a queue order is asked, and its keys are compared.

    What it raises is marked with the order. ``PluginError`` is raised for keys that cannot be
    compared.
    """

    __slots__ = ("_order",)

    def __init__(self, order: object) -> None:
        self._order = order

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, place: Any) -> None:
        if error is None:
            return
        if isinstance(error, TypeError) and place.tb_next is None:  # no call of the order
            failure = PluginError(f"key() returned what cannot be compared: {error}")
            blame(failure, "queue_order", self._order)
            raise failure from error
        if isinstance(error, Exception):
            blame(error, "queue_order", self._order)


# ---------------------------------------------------------------------- answers of each step


def check_length_cap(scheduler: Scheduler) -> int:
    """Return the length cap of a scheduler.

    Raises:
        PluginError: no sequence could have so many tokens.
    """
    cap = scheduler.length_cap
    if type(cap) is not int or cap < 1:
        raise PluginError(
            f"scheduler {type(scheduler).__qualname__}: its length_cap is {cap!r}; it must be a "
            "whole number of tokens, at least 1"
        )
    return cap


def count_scheduled(plan: Schedule, step: int) -> set[SeqId]:
    """Count the tokens of a plan as scheduled in a step; return the sequences with more pending.

    Raises:
        PluginError: it plans what cannot be computed; some of its tokens are counted.
    """
    incomplete: set[SeqId] = set()
    if 0 in array("q", plan.num_tokens):  # which raises if one is no integer
        raise PluginError("schedule() planned 0 tokens of a sequence")
    for sequence, num_tokens in zip(plan.sequences, plan.num_tokens, strict=True):
        end = sequence.num_scheduled + num_tokens
        if end != len(sequence.tokens) + sequence.num_unknown or end > sequence.capacity:
            _check_chunk(sequence, num_tokens)
            incomplete.add(sequence.id)
        sequence.num_scheduled = end
        sequence.last_step = step
    if incomplete and len({sequence.id for sequence in plan.sequences}) < len(plan.sequences):
        raise PluginError("schedule() planned one sequence twice")
    return incomplete


def _check_chunk(sequence: SequenceState, num_tokens: int) -> None:
    room = sequence.capacity - sequence.num_scheduled
    if not 0 < num_tokens <= min(sequence.num_pending, room):
        raise PluginError(
            f"schedule() planned {num_tokens} tokens of {sequence}, which has "
            f"{sequence.num_pending} pending and blocks for {room}"
        )


def check_plan(plan: Schedule) -> Schedule:
    """Return what ``schedule()`` did; PluginError if it is no :class:`Schedule`."""
    if not isinstance(plan, Schedule):
        raise PluginError(f"schedule() returned {plan!r}; it has to return a Schedule")
    return plan


def check_result(
    result: StepResult,
    batch: Sequence[SequenceState],
    ids: Sequence[SeqId],
    incomplete: Collection[SeqId],
    vocab_size: int | None,
) -> None:
    """Check that a result has the tokens that its step was to sample, and no others.

    Where each sequence samples one token, a few comparisons of whole lists are all that it costs.

    Args:
        batch: the sequences of the step; ``ids``: theirs.
        incomplete: ids of those of which tokens are pending after it: these sample none.
        vocab_size: token ids are below it; ``None``: any are served.

    Raises:
        PluginError: it has others.
    """
    if not isinstance(result, StepResult):
        raise PluginError(f"collect() returned {result!r}; it has to return a StepResult")
    tokens = result.token_ids
    if len(result.sequence_ids) != len(tokens):
        raise PluginError(
            f"collect() returned {len(tokens)} tokens for {len(result.sequence_ids)} sequence ids"
        )
    plain = not (incomplete or result.failed or result.candidates)
    if not plain or result.sequence_ids != ids:
        _check_rows(result, [each for each in batch if each.id not in incomplete])
    _check_tokens(tokens, vocab_size)
    for candidates in result.candidates.values():
        _check_tokens(candidates, vocab_size)
    if result.logprobs is not None:
        _check_logprobs(result)


def _check_rows(result: StepResult, complete: Iterable[SequenceState]) -> None:
    """Check that each complete sequence has the tokens that it should, unless its code failed."""
    sampled = Counter(result.sequence_ids)
    searching: set[SeqId] = set()
    failed = set(result.failed)
    for sequence in complete:
        group = sequence.group
        count = 1 if group.forked else group.request.sampling.width
        if group.request.sampling.beam_width is not None:
            searching.add(sequence.id)
            count = 0
        found = sampled.pop(sequence.id, 0)
        if sequence.id in failed:
            failed.remove(sequence.id)
        elif found != count:
            raise PluginError(
                f"collect() returned {found} tokens for sequence {sequence.id}, which was to "
                f"sample {count}"
            )
        elif not count and sequence.id not in result.candidates:
            raise PluginError(f"collect() returned no candidates for beam {sequence.id}")
    foreign = [*sampled, *failed, *(beam for beam in result.candidates if beam not in searching)]
    if foreign:
        raise PluginError(
            f"collect() returned something for sequence {foreign[0]!r}, which was to sample nothing"
        )


def _check_tokens(tokens: Collection[int], vocab_size: int | None) -> None:
    try:
        array("q" if vocab_size is None else "Q", tokens)
    except (OverflowError, TypeError):
        raise PluginError("collect() returned a token that is no token id") from None
    if bool in set(map(type, tokens)):
        raise PluginError("collect() returned a truth value as a token id")
    if vocab_size is not None and tokens and max(tokens) >= vocab_size:
        raise PluginError(
            f"collect() returned token {max(tokens)}, which is outside the model's vocabulary (0 "
            f"to {vocab_size - 1})"
        )


def _check_logprobs(result: StepResult) -> None:
    assert result.logprobs is not None
    if len(result.logprobs) != len(result.token_ids):
        raise PluginError(
            f"collect() returned log-probabilities of {len(result.logprobs)} tokens for "
            f"{len(result.token_ids)}"
        )
    for token, entry in zip(result.token_ids, result.logprobs, strict=True):
        if entry is not None and token not in entry:
            raise PluginError(f"collect() returned log-probabilities without sampled token {token}")
