"""Answers of policies and of a start, checked where a step need not: in :func:`guarded` calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from paged_core.errors import PluginError
from paged_core.ids import BlockId, BlockKey
from paged_core.interfaces.admission import Held, Load, Refused
from paged_core.interfaces.executor import Capacity
from paged_core.interfaces.length_predictor import ExpectedLength
from paged_core.interfaces.preemption import PreemptionMode
from paged_core.request import Request
from paged_core.sequence import SequenceGroup

MAX_BLOCKS = 1 << 27


def check_capacity(capacity: Capacity) -> None:
    """Check what an executor says that it can hold.

    Raises:
        PluginError: no engine can use that.
    """
    for name, value, least in (
        ("num_blocks", capacity.num_blocks, 1),
        ("num_host_blocks", capacity.num_host_blocks, 0),
        ("max_model_len", capacity.max_model_len, 1),
    ):
        if not least <= value <= MAX_BLOCKS:
            raise PluginError(
                f"start() returned {name}={value}; it must be {least} to {MAX_BLOCKS}"
            )


class VictimAnswers:
    """The answers of a victim: one of the candidates."""

    def choose(self, chosen: object, candidates: Sequence[SequenceGroup], now: float) -> None:
        if not any(chosen is group for group in candidates):
            raise PluginError(
                f"choose() returned {chosen!r}, which is none of the {len(candidates)} candidates "
                "that it was shown; it has to return one of them (paged_testing.VictimConformance "
                "tests it)"
            )


class PreemptionAnswers:
    """The answers of a preemption: modes, and lengths that can be reserved."""

    def mode(self, mode: object, group: SequenceGroup) -> None:
        if not isinstance(mode, PreemptionMode):
            raise PluginError(
                f"mode() returned {mode!r}; it has to return PreemptionMode.RECOMPUTE or "
                "PreemptionMode.SWAP"
            )

    def tokens_to_reserve(self, num_tokens: object, group: SequenceGroup) -> None:
        if num_tokens is None:  # asked for each running group when one is admitted
            return
        least = max((len(sequence.tokens) for sequence in group.live), default=0)
        if type(num_tokens) is not int or num_tokens < least:
            raise PluginError(
                f"tokens_to_reserve() returned {num_tokens!r} for a sequence of {least} tokens; it "
                "has to return None, or as many tokens at least, as an int"
            )


class LengthAnswers:
    """The answers of a length predictor: lengths that a sequence can have."""

    def expect(self, expected: object, request: Request) -> None:
        if expected is None:
            return
        if not (
            isinstance(expected, ExpectedLength)
            and isinstance(expected.tokens, int | float)
            and isinstance(expected.deviation, int | float)
            and 0 < expected.tokens < inf
            and 0 <= expected.deviation < inf
        ):
            raise PluginError(
                f"expect() returned {expected!r}; it has to return None or ExpectedLength(tokens, "
                "deviation) with numbers, tokens above 0 "
                "(paged_testing.LengthPredictorConformance tests it)"
            )


class AdmissionAnswers:
    """The decisions of an admission: reasons that can be told, times that will come."""

    def decide(self, decision: object, request: Request, load: Load, now: float) -> None:
        if isinstance(decision, Refused):
            after = decision.retry_after
            is_known = after is None or (isinstance(after, int | float) and 0 <= after < inf)
            if is_known and isinstance(decision.reason, str) and decision.reason:
                return
        elif isinstance(decision, Held):
            if isinstance(decision.until, int | float) and -inf < decision.until < inf:
                return
        elif decision is None:
            return
        raise PluginError(
            f"decide() returned {decision!r:.200}; it has to return None, Refused(reason, "
            "retry_after) with a text and seconds or None, or Held(until) with a time "
            "(paged_testing.AdmissionConformance tests it)"
        )


class AllocatorAnswers:
    """The answers of an allocator, by references and contents that are counted beside it.

    A block that is handed out while it is in use would let a sequence write over the keys and
    values of another, and one that is found by other tokens would let it read them.
    """

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * num_blocks
        self._content: dict[BlockId, BlockKey] = {}

    def allocate(self, blocks: Sequence[BlockId], count: int) -> None:
        last = len(self._references) - 1
        if len(blocks) != count:
            raise PluginError(f"it handed out {len(blocks)} blocks where {count} were asked for")
        for block in blocks:
            if not 0 <= block <= last:
                raise PluginError(f"it handed out block {block!r}, and the cache has 0 to {last}")
            if self._references[block]:
                raise PluginError(f"it handed out block {block}, which is in use")
            self._references[block] = 1
            self._content.pop(block, None)

    reserve = allocate

    def share(self, _: None, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._references[block] += 1

    def free(self, _: None, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._references[block] -= 1

    def release(self, _: None, blocks: Iterable[BlockId], last_step: int) -> None:
        self.free(_, blocks)

    def ref_count(self, count: int, block: BlockId) -> None:
        known = self._references[block]
        if count != known:
            raise PluginError(f"ref_count() of block {block} is {count!r}, and it has {known}")

    def look_up(self, found: Sequence[BlockId], keys: Sequence[BlockKey]) -> None:
        if len(found) > len(keys):
            raise PluginError(f"look_up() of {len(keys)} keys found {len(found)} blocks")
        for block, key in zip(found, keys, strict=False):
            if self._content.get(block) != key:
                raise PluginError(
                    f"look_up() found block {block!r}, which does not hold the tokens asked for"
                )

    def cache(self, held: BlockId, block: BlockId, key: BlockKey) -> None:
        if held != block:  # the caller's reference has moved to it
            if self._content.get(held) != key:
                raise PluginError(f"cache() merged block {block} with {held!r}, of other tokens")
            self._references[held] += 1
            self._references[block] -= 1
        self._content[held] = key

    def uncache(self, _: None, blocks: Iterable[BlockId]) -> None:
        for block in blocks:
            self._content.pop(block, None)
