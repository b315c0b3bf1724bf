"""Orders, victims and preemptions that are wrong on purpose: the conformance class of the slot must
catch each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from itertools import count
from math import exp, sqrt
from random import Random, choice, random, randrange
from time import monotonic, sleep
from typing import Any, ClassVar, cast

from paged_core.interfaces.length_predictor import LengthPredictor
from paged_core.interfaces.preemption import Preemption, PreemptionMode
from paged_core.interfaces.queue_order import QueueOrder
from paged_core.interfaces.victim import Victim
from paged_core.sequence import SequenceGroup, Status
from paged_testing import PreemptionConformance, VictimConformance
from unit.faulty_settings import FaultyLimitSettings, Part, forever, meddling, with_another

RECOMPUTE, SWAP = PreemptionMode.RECOMPUTE, PreemptionMode.SWAP


def _tokens(lengths: LengthPredictor | None, group: SequenceGroup) -> float:
    answer = lengths.expect(group.request) if lengths else None
    return answer.tokens if answer else 0.0


class _Policy:
    def __init__(self, options: Any, parts: Any, /) -> None:
        self.asked = count()
        self.kept: list[str] = []
        self.known: dict[Any, Any] = {}
        self.kv_cache = getattr(parts, "kv_cache", None)
        self.lengths = getattr(parts, "length_predictor", None)
        self.limit = getattr(options, "limit", 0)

    @cached_property
    def salt(self) -> int:
        """Keys from dice that are rolled once."""
        return randrange(1 << 30)

    def expected(self, group: SequenceGroup, key: Any) -> float:
        """The length of a request, kept by a key for a while."""
        if len(self.known) > 64:
            self.known.clear()
        return cast("float", self.known.setdefault(key, _tokens(self.lengths, group)))

    def rolled(self, group: SequenceGroup) -> int:
        return (group.number + 1) * self.salt >> 7 & 1


# ---------------------------------------------------------------------- orders


class _Order(_Policy, QueueOrder):
    pass


def arrival(self: _Order, group: SequenceGroup, now: float) -> Any:
    return group.number


ORDERS = with_another(
    __name__,
    _Order,
    "key",
    {
        # of a request without a deadline it cannot be compared
        "IncomparableOrder": lambda self, group, now: group.request.deadline,
        # it says that it is stable, but ages
        "DriftingOrder": lambda self, group, now: group.request.priority - now,
        # another key each time it is asked
        "CountingOrder": lambda self, group, now: -next(self.asked),
        "RollingOrder": lambda self, group, now: group.number ^ self.salt,
        "HashingOrder": lambda self, group, now: hash(group.id),
        # by where a group is in memory; keeps keys by that, and by the id of a request
        "PlaceOrder": lambda self, group, now: (group.request.priority, id(group)),
        "ByPlaceOrder": lambda self, group, now: self.known.setdefault(id(group), group.longest),
        "ByNameOrder": lambda self, group, now: self.known.setdefault(group.id, group.longest),
        # by when it was first asked
        "AskedOrder": lambda self, group, now: self.known.setdefault(group, now),
        # divides by what is left, of which there may be nothing while the last token is sampled
        "DividingOrder": lambda self, group, now: 1 / (group.max_length - group.longest),
        # it says that it is stable, but goes by what may be learned
        "HopefulOrder": lambda self, group, now: str(
            self.lengths and self.lengths.expect(group.request)
        ),
        # knows no group that is swapped out
        "SwappedOrder": lambda self, group, now: (
            {Status.WAITING: 1, Status.RUNNING: 0}[group.status],
            group.number,
        ),
        # has another kind of key where nothing is expected
        "UnknownOrder": lambda self, group, now: (
            self.lengths.expect(group.request) and group.number if self.lengths else group.number
        ),
        # keeps what it expects by the length of the prompt
        "LengthOrder": lambda self, group, now: self.expected(group, len(group.request.prompt)),
        "SleepingOrder": lambda self, group, now: sleep(0) or group.number,
        # of a great priority it raises
        "OverflowingOrder": lambda self, group, now: exp(group.request.priority),
        "ClockOrder": lambda self, group, now: (group.number, monotonic() < 0),
        "DatedOrder": lambda self, group, now: (group.number, datetime.now().year < 0),
        "UnseededOrder": lambda self, group, now: (group.number, Random().random() < 0),
        # of no effect, but drawn from the numbers of the program
        "DicingOrder": lambda self, group, now: (group.number, random() < 0),
        "ReversedOrder": lambda self, group, now: -group.number,
        # by arrival, but what was preempted first
        "PreemptedOrder": lambda self, group, now: (not group.num_preemptions, group.number),
        # equal ones by what it does not say
        "SaltedOrder": lambda self, group, now: group.request.cache_salt or "",
        # it says that it is stable, but looks at the cache
        "OccupiedOrder": lambda self, group, now: (-self.kv_cache.num_free, group.number),
        # notes on a group that it has been seen
        "MarkingOrder": meddling(lambda group: setattr(group, "num_cached", 0), arrival),
        # looks for ever for a deadline
        "WaitingOrder": forever(
            lambda group, now: group.request.deadline is None and group.request.priority, arrival
        ),
        # raises for a group that runs
        "FrozenOrder": lambda self, group, now: (
            group.number if group.admitted_at is None else self.known[group.id]
        ),
    },
)


class FirstOptionsOrder(_Order):
    """Goes by the options of the first one that was made."""

    options: ClassVar[list[Any]] = []

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.options.append(options)

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (group.number % self.options[0].limit, group.number)


class FirstPartOrder(_Order):
    """Goes by the first component of its own slot that was made."""

    parts: ClassVar[list[Any]] = []

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.parts.append(parts.make("faulty_part"))

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (group.number % self.parts[0].limit, group.number)


class OwnPartOrder(_Order):
    """Makes a component of its own slot itself, whichever the settings choose."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.part = Part(FaultyLimitSettings(), parts)

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (group.number // self.part.limit, group.number)


class PartForEachOrder(_Order):
    """Asks for a component of its own slot whenever it needs one."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.make = parts.make

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (group.number // self.make("faulty_part").limit, group.number)


class OneSidedOrder(_Order):
    """Counts what was served, but is not told when a group has left."""

    total = 0

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return (self.total, group.number)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.total += num_tokens


class ListingOrder(_Order):
    """By arrival; looks in a list for what is being served."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.number

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        if group.id not in self.kept:
            self.kept.append(group.id)

    def left(self, group: SequenceGroup, /) -> None:
        if group.id in self.kept:
            self.kept.remove(group.id)


class _CountingService(_Order):
    """By arrival; counts the tokens that each request was served."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.tokens: dict[str, int] = {}

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return group.number

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.tokens[group.id] = self.tokens.get(group.id, 0) + num_tokens

    def left(self, group: SequenceGroup, /) -> None:
        self.tokens.pop(group.id, None)


class _ServiceOrder(_CountingService):
    stable = False


SERVED = with_another(
    __name__,
    _ServiceOrder,
    "key",
    {
        # adds up what all were served, for each key; looks for the least within a built-in
        "SummingOrder": lambda self, group, now: (
            sum(tokens for tokens in self.tokens.values()) < 0,
            group.number,
        ),
        "LeastOrder": lambda self, group, now: (
            self.tokens.get(group.id, 0) - min(self.tokens.values(), default=0)
        ),
    },
)


class ForgetfulOrder(_ServiceOrder):
    """Counts the service of a few tenants, of whom it forgets whichever a set gives."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return self.tokens.get(group.request.tenant, 0)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.tokens[group.request.tenant] = num_tokens
        while len(self.tokens) > 16:
            del self.tokens[next(iter({*self.tokens}))]


class CommonOrder(_ServiceOrder):
    """Counts with its class what was served, so two engines count together."""

    all: ClassVar[dict[str, int]] = {}

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.tokens = self.all

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return self.tokens.get(group.id, 0)


class SettledOrder(_CountingService):
    """Says that it is stable, but what others of a tenant are served counts."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return self.tokens.get(group.request.tenant, 0)

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        tenant = group.request.tenant
        self.tokens[tenant] = self.tokens.get(tenant, 0) + num_tokens


class LiveOrder(_CountingService):
    """Has keys that change themselves."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        return self.known.setdefault(group.request.tenant, [0])

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.known.setdefault(group.request.tenant, [0])[0] += num_tokens


class RecountingQuantum(_CountingService):
    """Counts what was generated, of which it gets a copy."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return sum(len(each.output) for each in group.sequences) > 4096


class GatheringQuantum(_CountingService):
    """Looks at all whose keys it was asked for."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        self.tokens.setdefault(group.id, 0)
        return group.number

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        is_long = self.tokens.get(group.id, 0) > 4
        return is_long and any(tokens < 0 for tokens in self.tokens.values())


class JoiningOrder(_CountingService):
    """Forgets of whom it was asked only who was served."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        self.tokens.setdefault(group.id, 0)
        return group.number

    def left(self, group: SequenceGroup, /) -> None:
        if self.tokens.get(group.id):
            super().left(group)


class IdleOrder(_ServiceOrder):
    """Forgets what was served of a tenant's requests once the tenant has none."""

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        of_tenant = self.known.setdefault(group.request.tenant, {})
        of_tenant[group.id] = of_tenant.get(group.id, 0) + num_tokens

    def left(self, group: SequenceGroup, /) -> None:
        of_tenant = self.known.get(group.request.tenant, {})
        of_tenant[group.id] = 0
        if not any(of_tenant.values()):
            self.known.pop(group.request.tenant, None)


class RememberedOrder(_Order):
    """Keeps what it said of the last groups when it was first asked."""

    def key(self, group: SequenceGroup, now: float, /) -> Any:
        key = self.known.setdefault(group, group.max_length - group.longest)
        if len(self.known) > 32:
            del self.known[next(iter(self.known))]
        return key


class OneByOneQuantum(_CountingService):
    """Counts the tokens that were served one by one."""

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        for _ in range(num_tokens):
            super().served(group, 1, now)


class WeightyOrder(_ServiceOrder):
    """Doubles the weight of what is served every minute, until there is no such number."""

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        super().served(group, num_tokens * int(2.0 ** (now / 60)), now)


class SeldomQuantum(_CountingService):
    """Ends some quanta some tokens later, by hashes of tenants."""

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return self.tokens.get(group.id, 0) > 100 + hash(group.request.tenant) % 8


class SummingQuantum(_CountingService):
    """Keeps what was served in each step, and adds it up."""

    def served(self, group: SequenceGroup, num_tokens: int, now: float, /) -> None:
        self.known.setdefault(group.id, []).append(num_tokens)

    def left(self, group: SequenceGroup, /) -> None:
        self.known.pop(group.id, None)

    def quantum_over(self, group: SequenceGroup, now: float, /) -> bool:
        return sum(self.known.get(group.id, ())) > 64


LEAVING = with_another(
    __name__,
    _CountingService,
    "left",
    {
        # assumes that what leaves was served
        "AssumingOrder": lambda self, group: self.tokens.pop(group.id),
        # never forgets a group
        "RememberingOrder": lambda self, group: self.tokens.update({group.id: 0}),
    },
)
QUANTA = with_another(
    __name__,
    _CountingService,
    "quantum_over",
    {
        # over every other time that it is asked
        "CountingQuantum": lambda self, group, now: next(self.asked) % 2 == 1,
        # answers with a number of tokens
        "WordlessQuantum": lambda self, group, now: self.tokens.get(group.id, 0),
        # raises for a group that was not served yet
        "NarrowQuantum": lambda self, group, now: self.tokens[group.id] > 4,
        # looks at all that were served
        "WalkingQuantum": lambda self, group, now: any(
            tokens < 0 for tokens in self.tokens.values()
        ),
    },
)


# ---------------------------------------------------------------------- victims


class _Victim(_Policy, Victim):
    pass


VICTIMS = with_another(
    __name__,
    _Victim,
    "choose",
    {
        "OldestVictim": lambda self, shown, now: shown[0],
        # counts shared blocks once for each sequence; and those that have been preempted as often
        # as they may be
        "DoublingVictim": lambda self, shown, now: max(
            reversed(shown), key=lambda g: sum(len(each.table.blocks) for each in g.live)
        ),
        "OnceMoreVictim": lambda self, shown, now: max(
            reversed([g for g in shown if g.num_preemptions <= 1] or shown),
            key=lambda g: len({b for each in g.live for b in each.table.blocks}),
        ),
        # counts sequences that have ended
        "EndedVictim": lambda self, shown, now: max(
            reversed(shown), key=lambda g: sum(g.max_length - s.num_tokens for s in g.sequences)
        ),
        # looks for the place of each candidate among all
        "PlacingVictim": lambda self, shown, now: sorted(shown, key=shown.index)[-1],
        # takes it that none generates more than is expected
        "OutlivedVictim": lambda self, shown, now: max(
            shown,
            key=lambda g: (
                sqrt(_tokens(self.lengths, g) - len(g.live[0].output)) if self.lengths else 0.0
            ),
        ),
        # keeps what it expected of requests that are still there
        "StaleVictim": lambda self, shown, now: max(
            reversed(shown), key=lambda group: self.expected(group, group.number)
        ),
        # changes the list that it is shown
        "PoppingVictim": lambda self, shown, now: shown.pop(),
        # turns the list that it is shown
        "SortingVictim": lambda self, shown, now: (
            (type(shown) is list and shown.sort(key=lambda group: group.number)) or shown[-1]
        ),
        # keeps what it expects by names
        "NamesakeVictim": lambda self, shown, now: max(
            shown, key=lambda group: self.expected(group, group.id)
        ),
        # counts what a step in flight computes
        "PlannedVictim": lambda self, shown, now: min(
            reversed(shown), key=lambda group: sum(each.num_scheduled for each in group.live)
        ),
        # keeps lengths by where groups are in memory
        "ByPlaceVictim": lambda self, shown, now: max(
            shown, key=lambda group: self.known.setdefault(id(group), group.longest)
        ),
        # finds none if there is only one candidate
        "ForgetfulVictim": lambda self, shown, now: shown[-2],
        "RollingVictim": lambda self, shown, now: choice(list(shown)),
        # the first of a set of texts
        "SettingVictim": lambda self, shown, now: {f"of {g.id}": g for g in shown}[
            next(iter({f"of {g.id}" for g in shown}))
        ],
        "RootVictim": lambda self, shown, now: max(shown, key=lambda g: sqrt(g.request.priority)),
        # keeps the tenants that were ever shown
        "TenantVictim": lambda self, shown, now: (
            self.kept.extend({shown[-1].request.tenant}.difference(self.kept)) or shown[-1]
        ),
        # counts how often each was chosen, for ever
        "RememberingVictim": lambda self, shown, now: self.kept.append(shown[-1].id) or shown[-1],
        # counts how often each was chosen, for ever, by its number
        "NumberedVictim": lambda self, shown, now: (
            self.known.update({shown[-1].number: now}) or shown[-1]
        ),
        # counts what those have generated that have a deadline
        "LaxVictim": lambda self, shown, now: max(
            shown, key=lambda g: (g.request.deadline and len(g.live[0].output)) or 0
        ),
        # the first of a set of tenants
        "AnyTenantVictim": lambda self, shown, now: (
            tenants := {g.request.tenant: g for g in shown if g.request.tenant} or {"": shown[0]}
        )[next(iter({*tenants}))],
        # compares each with each
        "PairingVictim": lambda self, shown, now: max(
            shown, key=lambda group: sum(1 for each in shown if each.number <= group.number)
        ),
        # adds up the tokens that each has computed
        "AddingVictim": lambda self, shown, now: max(
            shown, key=lambda group: len([t for each in group.live for t in each.tokens])
        ),
        # compares each block with each
        "ComparingVictim": lambda self, shown, now: max(
            shown,
            key=lambda g: sum(g.live[0].table.blocks.index(b) for b in g.live[0].table.blocks),
        ),
        # finds none in a crowd
        "CrowdedVictim": lambda self, shown, now: shown[-1] if len(shown) < 1000 else None,
        # frees the blocks itself
        "ActingVictim": lambda self, shown, now: (
            self.kv_cache.release_group(shown[-1]) or shown[-1]
        ),
        # waits until one has generated something
        "WaitingVictim": forever(
            lambda shown, now: not any(group.live[0].output for group in shown),
            lambda self, shown, now: shown[-1],
        ),
        # only among those that were not preempted yet
        "SparingVictim": lambda self, shown, now: [g for g in shown if not g.num_preemptions][-1],
    },
)


class ByLengthCases(VictimConformance):
    """Cases of a victim that has the longest answer, as is expected."""

    def expected(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        lengths = self.context.length_predictor
        return max(reversed(candidates), key=lambda group: _tokens(lengths, group))


class LateVictim(_Victim):
    """Chooses among those that it was shown the last time."""

    shown: Sequence[SequenceGroup] = ()

    def choose(self, candidates: Sequence[SequenceGroup], now: float, /) -> SequenceGroup:
        chosen = self.shown[0] if self.shown else candidates[-1]
        self.shown = list(candidates)
        return chosen


# ---------------------------------------------------------------------- preemptions


class _Preemption(_Policy, Preemption):
    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return RECOMPUTE


class _Swapping(_Preemption):
    may_swap = True


class RememberedPreemption(_Swapping):
    """Keeps what it said of the last groups when it was first asked."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        said = self.known.setdefault(group, SWAP if group.longest > 32 else RECOMPUTE)
        if len(self.known) > 32:
            del self.known[next(iter(self.known))]
        return cast("PreemptionMode", said)


class NotingPreemption(_Preemption):
    """Reserves more for those of which the mode was asked."""

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        self.known[group.number % 32] = True
        return RECOMPUTE

    def tokens_to_reserve(self, group: SequenceGroup, /) -> int | None:
        return group.max_length if group.number % 32 in self.known else None


class PairPreemption(_Preemption):
    """Says that it never swaps where it reserves nothing, and does."""

    def __init__(self, options: Any, parts: Any, /) -> None:
        super().__init__(options, parts)
        self.swaps, self.may_swap = options.swaps, options.swaps and options.reserved > 0

    def mode(self, group: SequenceGroup, /) -> PreemptionMode:
        return SWAP if self.swaps else RECOMPUTE


class ByOptionCases(PreemptionConformance):
    """Cases of a preemption that swaps what is longer than an option says."""

    def expected(self, group: SequenceGroup, /) -> PreemptionMode:
        return (RECOMPUTE, SWAP)[group.longest > vars(self.options)["limit"]]


class ByOutputCases(PreemptionConformance):
    """Cases of a preemption that swaps what has generated more than 20 tokens."""

    def expected(self, group: SequenceGroup, /) -> PreemptionMode:
        return (RECOMPUTE, SWAP)[sum(len(each.output) for each in group.live) > 20]


PREEMPTIONS = {
    **with_another(
        __name__,
        _Preemption,
        "mode",
        {
            # it says that it never swaps
            "SecretSwapPreemption": lambda self, group: SWAP,
            "AgainPreemption": lambda self, group: SWAP if group.num_preemptions > 1 else RECOMPUTE,
            "WordlessPreemption": lambda self, group: "drop",
            # looks for ever for a length that suits a forked group
            "SearchingPreemption": forever(
                lambda group: group.num_seqs > 1, lambda self, group: RECOMPUTE
            ),
        },
    ),
    **with_another(
        __name__,
        _Swapping,
        "mode",
        {
            "AlternatingPreemption": lambda self, group: (SWAP, RECOMPUTE)[next(self.asked) % 2],
            # keeps modes by where groups are in memory
            "ByPlacePreemption": lambda self, group: self.known.setdefault(
                id(group), (RECOMPUTE, SWAP)[group.live[0].num_computed > 4]
            ),
            "TenantPreemption": lambda self, group: (
                self.kept.extend({group.request.tenant}.difference(self.kept)) or RECOMPUTE
            ),
            # takes a small option for a greater one
            "ClampedPreemption": lambda self, group: (RECOMPUTE, SWAP)[
                group.longest > max(8, self.limit)
            ],
            # counts sequences that have ended
            "EndedPreemption": lambda self, group: (RECOMPUTE, SWAP)[
                sum(len(each.output) for each in group.sequences) > 20
            ],
            # swaps so often and no more
            "SparingPreemption": lambda self, group: (SWAP, RECOMPUTE)[next(self.asked) > 100],
            "RollingPreemption": lambda self, group: (RECOMPUTE, SWAP)[self.rolled(group)],
        },
    ),
    **with_another(
        __name__,
        _Preemption,
        "tokens_to_reserve",
        {
            # more than a sequence can come to
            "ExcessivePreemption": lambda self, group: group.max_length + 8,
            "FloatPreemption": lambda self, group: float(group.longest),
            # for all of its sequences, as if one held what they have
            "AddingPreemption": lambda self, group: sum(len(each.tokens) for each in group.live),
            "BoundedPreemption": lambda self, group: min(
                group.max_length,
                len(group.live[0].tokens) + group.request.sampling.max_tokens,  # type: ignore[operator]
            ),
            # counts what its longest sequence has in a copy of it
            "CopyingPreemption": lambda self, group: max(len([*s.tokens]) for s in group.live),
            # for its first sequence, which may have ended before the others
            "FirstPreemption": lambda self, group: len(group.sequences[0].tokens),
            # less than what a group has already
            "StingyPreemption": lambda self, group: 1,
            # raises for a group that holds no blocks
            "NarrowPreemption": lambda self, group: (
                len(group.live[0].tokens) if group.live[0].table.blocks[0] >= 0 else None
            ),
        },
    ),
}


globals().update({**ORDERS, **SERVED, **LEAVING, **QUANTA, **VICTIMS, **PREEMPTIONS})
