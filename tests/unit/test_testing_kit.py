"""The conformance kit finds components that are wrong on purpose."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from pydantic import field_validator

import paged_testing
from paged_core.errors import PluginError
from paged_core.plugins.component import ComponentSettings
from paged_plugins.server.testing.services import check_loops
from paged_testing import (
    POLICY_SLOTS,
    Workload,
    build_memory_engine,
    check_nothing_leaked,
    check_served,
    engine_settings,
    registry_with,
    serve,
    settings_round_trip,
    simple_request,
)
from paged_testing.ranks import RankProcess
from paged_testing.use import growth
from unit.faulty_evictors import LeakyEvictor
from unit.faulty_settings import registry_of
from unit.mutants import MUTANTS, Mutant, recorded

pytestmark = pytest.mark.usefixtures("compiled_kernels")

ENDLESS = (
    *("WaitingAllocator", "HangingEvictor", "WaitingOrder", "WaitingVictim", "SearchingPreemption"),
    *("CirclingScheduler", "WaitingObserver", "WaitingExecutor", "LoopingAttention"),
    *("LoopingRunner", "PatientCommunicator"),
)
CAUGHT_BY = dict.fromkeys(ENDLESS, "has not returned") | {
    "BackwardsCommunicator": "in the order of the ranks",
    "ShapesCommunicator": "still take",
    "BackwardsSourceCommunicator": "takes a broadcast from -1 of 3",
    "OpenCommunicator": "still holds the descriptors",
    "NamelessCommunicator": "rank [01] is not named",
    "OtherErrorCommunicator": "RuntimeError: rank",
    "FirstStepAllocator": "released after step 0",
    "WaitingTurnScheduler": "also for what is swapped out",
    "JoiningOrder": "grows for ever",
    "ClampedPreemption": "is recompute, not swap",
    "HopefulOrder": "while a length predictor learns",
    **dict.fromkeys(("LengthOrder", "NamesakeVictim"), "nothing by the id"),
    "StuckScheduler": "unfinished after 200 steps without any progress|nothing is planned",
    "SortingEvictor": "among 64 .* no faster than the logarithm",
    "SearchingEvictor": "no faster than the logarithm",
    "RollingEvictor": "runs cannot be repeated|the same calls",
    "KeyOrderEvictor": "content keys may only be compared",
    **dict.fromkeys(("HistoryEvictor", "PopularEvictor"), "left [0-9]+ bytes allocated"),
    "CommonOrder": "keep in its class or module",
    "OccupiedOrder": "change while others are admitted",
    "SettledOrder": "change while others are served",
    "SaltedOrder": "cache_salt='(b|salt)'",
    "TouchingAllocator": "a look-up changed what the evictor holds|num_hits is wrong",
    "HereditaryAllocator": "num_hits is wrong|allocate takes",
    **dict.fromkeys(("SearchingAllocator", "RecountingAllocator"), "instructions and items"),
    "LeapingAllocator": "it found blocks",
    "ListingAllocator": "of equal content",
    "RootedAllocator": "a prefix",
    "CrowdedEvictor": "which are of equal content",
    **dict.fromkeys(("TogetherEvictor", "CompactingEvictor"), "what built-ins go through"),
    "EmptyingAllocator": "free takes .* where all are given",
    "NumberedAllocator": r"is not hash\(key\)",
    "LiveOrder": "while others are served",
    "OutlivedVictim": "math domain error|nonnegative",
    "UnknownOrder": "'NoneType' and 'int'|'int' and 'NoneType'",
    "MemoryScheduler": "beyond StepLimits",
    "KeyedObserver": "JSON has texts alone",
    "SeatedAdmission": "NoneType",
    "IdleObserver": "what it keeps",
    "NamingObserver": "cut the texts",
    "RingObserver": "a reader who|of the report before",
    "ReadObserver": "returns .*, not what",
    "PairingObserver": "look at each a few times",
    "CachedCostModel": "changes the cache of unit.faulty_cost_models.CachedCostModel._of_tokens",
    "AlikeExecutor": "16 sequences draw",
    "ForgetfulExecutor": "are to get one each",
    "FractionPredictor": "math domain error",
    "BraceParserFormat": "behind .* the rest is text",
    "ClimbingAllocator": "look_up takes .* a prefix",
    "SeatLosingScheduler": "at first|unfinished after|nothing is planned",
    "OverdrawingScheduler": "5 tokens are scheduled, 4 is the budget",
    "TruncatingObserver": "hears of an event, it changed group",
    "CommonObserver": "an observer raised",
    "KeepingCostModel": "still take",
    "TightCostModel": "1 or more, None where it does not know",
    "NegativeCostModel": "1 or more, None where it does not know",
    "OwnSizeCostModel": "in blocks of the size that it is asked for",
    "KeyCostModel": "whatever the earlier calls were",
    "PaddingCostModel": "with less of prefill_tokens",
    "HashingCostModel": "another process decides",
    **dict.fromkeys(
        ("ByPlaceOrder", "ByNameOrder", "ByPlaceVictim", "ByPlacePreemption"),
        "which others get",
    ),
    "PlaceOrder": "runs cannot be repeated",
    "PlaceEvictor": "runs cannot be repeated|of other objects|may only be compared for equality",
    "ByNamePredictor": "if none was before it",
    "DividingOrder": "ZeroDivisionError",
    **dict.fromkeys(("SleepingOrder", "SleepingObserver"), "sleeps: the engine waits"),
    "SkippingEvictor": r"each of which depends on another \(telling",
    "UncountingAdmission": "one burst after the other",
    "EmptyingObserver": "event [0-9]+ is",
    "OneFileObserver": "raised and was dropped",
    "SumObserver": "keep what one knows in itself",
    "SixteenRunner": "its block_size is 16",
    "ChangingRunner": "changed the tokens or positions",
    "ShortRunner": "the positions 0 and 32",
    "CommonRunner": "bfloat16|another runner was loaded",
    "TableRunner": "the positions 511 and 512 are the same",
    **dict.fromkeys(("PositionsRunner", "BatchesRunner"), "still take"),
    "WholeRunner": "with a communicator of 2 ranks",
    "HopefulRunner": "of which the tokens .* are NaN",
    "NarrowRunner": "return tokens as torch.int32",
    "PlainCacheRunner": "kv_cache_dtype of its layers is",
    "OneThreadRunner": "another thread",
    "RowsGrammar": "a mask allows .*, which accept.. refuses",
    "AddingGrammar": "depend on what was in their rows before",
    "AnchoredGrammar": r"the text '.*ab', which|never allow the text 'ab'",
    "LowerGrammar": "the text",
    "OneBranchGrammar": "never allow the text",
    "OpenGrammar": "has not the form|has not this form",
    "ByPlaceGrammar": "after others were compiled|masks of another kind|JSONDecodeError",
    "WideGrammar": "allows tokens that are not",
    "ChangingAttention": "changed the batch",
    **dict.fromkeys(("SleepingRoutes", "ReadingRoutes"), "every request waits meanwhile"),
    "KeepingRoutes": "grows for ever|still take",
    "NamedRoutes": "with 500: KeyError",
    **dict.fromkeys(("CountingRoutes", "CuttingRoutes"), "instructions in the event loop with a"),
    "InLoopRoutes": "tokenises what is long in the event loop",
    "RecountingRoutes": "items of built-ins in the event loop",
    "UndocumentedRoutes": "with 503, which the `errors`",
    "UnabortedRoutes": "with 499, which the `errors`",
    "TolerantRoutes": "with a field that it does not know",
    "ClockCostModel": "asks the clock",
    "LateThinkFormat": "came before the end|gives",
    "EagerMarkThinkFormat": "a letter that ends no mark may begin one",
    "RememberingThinkFormat": r"after the prompt .* of ''",
    "OpenEndThinkFormat": "cut within",
    "NamelessThinkFormat": "stop strings would count within them",
    "MarklessThinkFormat": "where it is a special token",
    "BackwardsQueueScheduler": "the next one first",
    "RereadingScheduler": "where requests are short",
    "ShrinkingScheduler": "one burst after the other",
    **dict.fromkeys(
        (
            *("RelativeAdmission", "LastingAdmission", "DatedAdmission", "SlottedAdmission"),
            "WindowAdmission",
        ),
        "which may begin anywhere",
    ),
    "OverdueAdmission": "retry_after=-",
    "GrudgingAdmission": "still take",
    **dict.fromkeys(("StrayAdmission", "AsciiObserver"), "raised and was dropped"),
    **dict.fromkeys(
        ("DecidingAdmission", "PromisingAdmission", "ForksAdmission"), "one burst after the other"
    ),
    "IdleCommunicator": "without calls",
    **dict.fromkeys(
        ("SetAdmission", "HashedPredictor", "ForgetfulOrder"), "another process decides"
    ),
    "NotingPredictor": "still take",
    "PoppingObserver": "each front end is to hear",
    "LateObserver": "is answered as 0",
    "PagedObserver": r"and report\(0\) has not",
    "RepeatingObserver": "only some reports have all the ends again",
    "ChunkExecutor": "in chunks their log-probabilities are",
    "HeedlessExecutor": "ask it, or say why not in `failed`",
    **dict.fromkeys(("LookingObserver", "AwayObserver"), "raised and was dropped"),
    "RefusedObserver": r"dropped: .*on_request\(\) raised KeyError: .*faulty_observers.py:\d+ in",
    "AskedOrder": "asked a second before",
    "NanObserver": "no plain data",
    "FixedPathObserver": "no file is there",
    "RotatingScheduler": "sort a copy",
    "EagerScheduler": "let running groups grow first",
    "UrgentScheduler": "should go on running|waits for a step in flight",
    **dict.fromkeys(
        ("DoublingVictim", "OnceMoreVictim", "EndedVictim", "StaleVictim"), "it chose .* instead of"
    ),
    "EndedPreemption": "the mode of .* is swap, not recompute",
    "FloatPreemption": r"returned \d+\.0.* an int",
    "EagerCostModel": "with less of decode_sequences",
    "SwallowingExecutor": "of the executor within it",
    "ThreadExecutor": "after close",
    "PackingEvictor": "of the blocks .* it evicted",
    "ScanningEvictor": "no faster than the logarithm",
    "CountdownEvictor": "no faster than the logarithm",
    "ThreadGrammar": "several threads at once",
    **dict.fromkeys(
        ("SummingPredictor", "FirstPredictor", "WholePredictor"),
        "where sequences of 40 have ended",
    ),
    "LatePredictor": "and was not before",
    **dict.fromkeys(("SizesPredictor", "TenantPredictor"), "still take"),
    "CommonPredictor": "they share state",
    **dict.fromkeys(("CuriousPredictor", "RefreshingPredictor"), "changes what it remembers"),
    "OverwritingAllocator": "the evictor is told",
    "BatchingScheduler": r"nothing is planned 0\.0 s after",
    "WalkingAllocator": "instructions and items among 64",
    **dict.fromkeys(("SummingOrder", "LeastOrder"), r"8 calls of key\(\) take"),
    **dict.fromkeys(("WalkingQuantum", "GatheringQuantum"), r"8 calls of quantum_over\(\) take"),
    "RecountingQuantum": r"quantum_over\(\) of 4 that run",
    "AddingVictim": "of 4 candidates takes",
    "CopyingPreemption": r"tokens_to_reserve\(\) of 4 that run",
    "CoarseAttention": "values are wrong",
    "OfTablesAttention": "values are wrong",
    "PlacesAttention": "still take",
    "HoldingParserFormat": "pass it on as soon as",
    "ForgettingParserFormat": "returns all that was held back",
    "SlicingParserFormat": "in proportion to the text|copied only a few times",
    "ListingParserFormat": "what feed.. returned was changed later",
    "FewParserFormat": "and 8 calls of it are read",
    "UnorderedFormat": "the order of a set",
    "ScanningThinkFormat": "letters of '.*' in a row",
    **dict.fromkeys(("LoggingRoutes", "OpenFormat"), "still take"),
    "AlikeGrammar": "the masks of another kind of form",
    "CommonServer": "Connect call failed",
    "StrictRoutes": "after many bodies were refused",
    "RunsParserFormat": "built-ins go through|take .* instructions or more",
    "LateAnswerThinkFormat": "came early",
    "TextFormat": "`begins` is a text",
    "SortingGrammar": "instructions to compile",
    "HeaderRoutes": "with 500: ValueError: .* 'word'",
    "SulkingRoutes": "keep no failures",
    "PatientServer": "read_timeout=1 leaves a connection open",
    "StrippingRoutes": "by all that is in their bodies",
    "TwinRoutes": "if another client goes that asked the same",
    "CountedRoutes": "with 500: KeyError",
    "QueryRoutes": "with 500: ValueError: .* 'word'",
    "RefusingRoutes": "answers no body that the tests make",
    "SharedPortServer": "DID NOT RAISE",
    "FixedMarksThinkFormat": "without '<<t\\+\\(ool_call>'",
    "AllTokensFormat": "KeyError: '</tool_call>'",
    "FlatFormat": "yes|defs",
    "StrangersFormat": "still take",
    "GrudgingRoutes": "still take",
    "ByTextRoutes": "by all that is in their bodies",
    "GainsRoutes": "in the event loop for each event",
    "RecordingGrammar": r"accept.. takes \d+ instructions for eight tokens",
    "GrammarsFormat": "still take",
    "UnnamedFormat": "`begins` has not its first mark",
    "CountingEvictor": "no faster than the logarithm",
    "ForeseeingEvictor": "as in a live engine",
    "UnclosedObserver": "close.. leaves files open: .*unclosed.txt",
    "WordyObserver": "grows for ever|after 160 others|not at its tokens",
    "BoundlessObserver": "characters after",
    "ReferringObserver": "an earlier report has changed",
    **dict.fromkeys(("SetObserver", "RunningObserver"), "no plain data"),
    **dict.fromkeys(("PairingScheduler", "IndexingScheduler"), "while 32 requests are there"),
    **dict.fromkeys(("AgeingScheduler", "RegularsScheduler"), "still take|grows for ever"),
    "WalkingEvictor": "all but 8 of them in use",
    **dict.fromkeys(("HashingOrder", "SettingVictim"), "another process decides"),
    **dict.fromkeys(("ClockOrder", "DatedOrder"), r"faulty_policies.py:\d+ in .*asks the clock"),
    **dict.fromkeys(
        ("DicingOrder", "UnseededOrder", "DicingScheduler"),
        "a random number without a seed|nothing is planned",
    ),
    **{
        f"Keeping{slot}": "still take"
        for slot in ("Executor", "Attention", "Runner", "Communicator")
    },
    "LookingBackScheduler": "instructions, [0-9]+ after 120 others",
    "StaleScheduler": "the first time",
    "BackOfTheQueueScheduler": "which was preempted",
    "CrowdedAttention": "depends on the batch",
    "WaitingAttention": "waits for the device",
    "WideAttention": "the dtype of its result is torch.float32",
    "FlatRowsAttention": "the shape of its result",
    "BufferAttention": "changed an earlier result",
    "SearchingParserFormat": "in proportion to the text|has not returned",
    "StrippingParserFormat": "letters of '.*' in a row",
    "WholeParserFormat": "RecursionError",
    "WordyFormat": "'nothing' gives",
    "ListParserFormat": "are no object",
    "HalfParserFormat": "after '<' a call may begin",
    "ManyFormat": "accepts two calls or more",
    "FirstOnlyFormat": "the grammar does not accept",
    "FixedMarkFormat": "gives .Text",
    "EmptyingFormat": "changed the functions",
    **dict.fromkeys(
        ("SharingParserFormat", "SharingThinkFormat", "SingleParserFormat"),
        "is read otherwise while another parser reads",
    ),
    "OtherWordsFormat": "the grammar does not accept",
    "FractionalCostModel": r"returned 125000\.0, which is no int",
    **dict.fromkeys(
        (
            "TenantVictim",
            "TenantPreemption",
            "RememberingVictim",
            "SwappedObserver",
            "EndedObserver",
            "AllButAddedObserver",
        ),
        "still take|grows for ever",
    ),
    **dict.fromkeys(("PairingVictim", "PlacingVictim"), "or more of 1536"),
    "MemoPredictor": "asked again|a second one",
    "CrowdedVictim": "of 1536 it chose None",
    "LateVictim": "chose another group",
    "RollingVictim": "runs cannot be repeated",
    "MarkingOrder": "num_cached from None to 0",
    "RollingOrder": "runs cannot be repeated",
    "CountingQuantum": "a second call returns something else",
    "WordlessQuantum": "not bools",
    "ExcessivePreemption": "tokens are reserved",
    "FirstPreemption": "or as many tokens at least|tokens are reserved",
    "AlternatingPreemption": "same mode",
    "UnimportableVictim": "cannot be imported from .*: .*No module named 'unit.a_module_not_there'",
    "MisspeltVictim": "'faulty' cannot be imported from .*no attribute 'MisspeltVictim'",
    "check_that_raises": r"LookupError: no such .*at \S+faulty_components.py:[0-9]+ in check",
    "check_without_reason": "returned False, and may return a reason",
    "check_that_refuses": "every case was skipped: it never runs",
    "LimitedVictim": "IndexError",
    "UnreadVictim": "'unread_share' of FaultyShareSettings has no effect",
    "OwnPartOrder": r"nothing calls make\('faulty_part'\)",
    "PartForEachOrder": r"make\('faulty_part'\) is called \d+ times",
    "HashingExecutor": "in another process",
    "OneStreamExecutor": "what one draws follows from its seed",
    "SteadyAdmission": "while the tenant goes on, too",
    "AbortsAdmission": "one burst after the other",
    **dict.fromkeys(("RegularAdmission", "FrontAdmission"), "of a tenant in an hour"),
    "UnboundedVictim": "nothing bounds the number 'limit' of FaultyOpenSettings",
    **dict.fromkeys(("FirstOptionsOrder", "FirstPartOrder"), "nothing that others keep in its"),
    "ListingOrder": r"8 calls of served\(\) take",
    "CountingAllocator": "instructions and items among 64",
    "TidyEvictor": "none of which depends on another or is evicted",
    "StaleRunner": "after a step of",
    "CopyingEvictor": "no faster than the logarithm",
    "ShorteningScheduler": "none of its tokens, sequences and limits",
    "OnceClosedObserver": "raises when it is called a second time",
    "DisturbingScheduler": "has nothing pending: it waits for a step in flight",
    "PilingEvictor": "3000 hits among 16 blocks left [0-9]+ bytes",
    "GreedyScheduler": "is the budget of a step",
    "TooManySequencesScheduler": "sequences run",
    "ForgettingScheduler": "remove\\(\\)",
    "RepeatingScheduler": "twice",
    "UnreservedScheduler": "too few blocks",
    "LiveQueuesScheduler": "return a copy, or a tuple",
    "ReversingScheduler": "sort a copy",
    "OvertakenScheduler": "resume first what is swapped out",
    "UnorderedScheduler": "are to be the next",
    "SilentScheduler": "not among the admitted",
    "ModestScheduler": "were taken from the cache",
    "DiscreetScheduler": "not among the preempted",
    "ImpatientScheduler": "for 1 tokens, 0 are left",
    "PickyScheduler": "fits alone, but is refused",
    "IgnoringScheduler": "fits alone, but is ignored",
    "HastyScheduler": "unfinished after",
    "ObligingScheduler": "were preempted for what came later",
    "RestlessScheduler": "there was no other request",
}

USUAL = frozenset(
    {
        *("HalfwayAllocator", "KeyOrderEvictor"),
        *("WalkingEvictor", "ClockOrder", "MarkingOrder", "CountingQuantum", "LateVictim"),
        *("UnimportableVictim", "check_that_refuses", "AlternatingPreemption", "RollingPreemption"),
        *("UnreservedScheduler", "PickyScheduler", "MeddlingObserver", "RaisingObserver"),
        *("LosingExecutor", "KeepingExecutor", "LateAttention", "ShiftedAttention"),
        *("DeafCommunicator", "RotatedCommunicator", "HastyGrammar", "SharedGrammar"),
        *("SearchingParserFormat", "SwallowingParserFormat", "SharingParserFormat"),
        *("SharingThinkFormat", "OverflowingCostModel", "LeakyRunner", "UpsideDownRunner"),
        *("CountingPredictor", "DeafPredictor", "LoadedAdmission"),
    }
)
"""Two or so of each class, which are found in seconds: the others are of the long run."""


def test_a_rank_imports_what_came_after_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks go on from one module of tests to the next, whose folder was not on the path."""
    with closing(RankProcess()) as rank:
        (tmp_path / "rank_came_later.py").write_text("class Later: pass")
        monkeypatch.syspath_prepend(tmp_path)
        rank.send("held", import_module("rank_came_later").Later())
        assert rank.answer(60) is not None


@pytest.mark.heavy
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, marks=[] if each.name in USUAL else pytest.mark.long, id=each.name)
        for each in MUTANTS
    ],
)
def test_catches(
    mutant: Mutant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    caught, message = recorded(mutant, tmp_path, record_property)
    assert "round_trip" not in caught.case
    is_answer = re.search("it has to return|raised TypeError", message)  # as the core has checked
    unmade = (PluginError, ImportError, AttributeError)
    assert is_answer or not isinstance(caught.error, unmade), message
    assert re.search(CAUGHT_BY.get(mutant.name, ""), message), message
    notes = "; ".join(getattr(caught.error, "__notes__", ()))
    is_said = isinstance(caught.error, AssertionError) and "round_trip" not in caught.case
    assert not is_said or re.search(r"tests/unit/\w+\.py:\d+", message + notes), notes


def test_every_class_is_tried_with_at_least_eight_mutants() -> None:
    kinds = [
        kind
        for name, kind in vars(paged_testing).items()
        if name.endswith("Conformance") and hasattr(kind, "slot")
    ]
    assert {kind.slot for kind in kinds} >= set(POLICY_SLOTS)
    for kind in kinds:
        tried = {mutant.made for mutant in MUTANTS if issubclass(mutant.conformance, kind)}
        assert len(tried) >= 8, kind
        assert {made.__name__ for made in tried} & USUAL, kind


class TestHelpers:
    @pytest.mark.filterwarnings("error")
    def test_strategies_over_a_registry_are_shown_in_a_line(self) -> None:
        assert len(repr(engine_settings(registry_with()))) < 200

    def test_registry_with_adds_parts_to_what_is_installed(self) -> None:
        registry = registry_of("evictor", LeakyEvictor)
        assert {"lru", "faulty"} <= set(registry.of("evictor"))
        assert "faulty" not in registry_with().of("evictor")
        engine = build_memory_engine(registry, evictor="faulty")
        assert engine.kv_cache.num_free == 64

    def test_settings_round_trip_refuses_what_loses_something(self) -> None:
        class LossySettings(ComponentSettings):
            name: Literal["lossy"] = "lossy"
            size: int = 3

        with pytest.raises(AssertionError, match="no description"):
            settings_round_trip(LossySettings)
        with pytest.raises(AssertionError, match="JSON loses"):
            settings_round_trip(DoublingSettings(size=2))

    def test_check_served_notices_wrong_text_and_leaks(self) -> None:
        workload = Workload(((0, simple_request("A", 5, 4)),))
        engine = build_memory_engine()
        groups = serve(engine, workload)
        check_served(engine, workload, groups)
        groups["A"].sequences[0].tokens[-1] += 1
        with pytest.raises(AssertionError, match="alone it has"):
            check_served(engine, workload, groups)
        engine.kv_cache._allocator.allocate(2)
        with pytest.raises(AssertionError, match="2 device blocks leaked"):
            check_nothing_leaked(engine)

    def test_serve_notices_what_does_not_end(self) -> None:
        engine = build_memory_engine()
        with pytest.raises(AssertionError, match="unfinished after 3 steps"):
            serve(engine, Workload(((0, simple_request("A", 5, 40)),)), max_steps=3)

    def test_what_fills_is_no_leak(self) -> None:
        kept: list[bytes] = []

        def fills(number: int) -> None:
            kept.append(bytes(64))
            del kept[:-500]

        assert growth(fills, 120, None)[0] < 480
        with pytest.raises(AssertionError, match=rf"for ever; .* is {re.escape(__file__)}:\d+"):
            growth(lambda number: kept.append(bytes(64)), 120, None)


class DoublingSettings(ComponentSettings):
    """Reads something else than it writes."""

    name: Literal["doubling"] = "doubling"
    size: int = 3

    @field_validator("size")
    @classmethod
    def _double(cls, size: int) -> int:
        return 2 * size


def test_a_lock_of_one_event_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("shares_a_lock")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    check_loops(made.__name__)
    vars(made)["Server"] = type("Server", (), {"turns": asyncio.Lock()})
    with pytest.raises(AssertionError, match="Server keeps turns, which only one event loop"):
        check_loops(made.__name__)
