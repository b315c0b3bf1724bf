"""Component ``simulated``: steps that take time on a virtual clock, and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from math import inf
from typing import Any, NoReturn, cast

from paged_core.engine.clock import Clock, VirtualClock
from paged_core.engine.contexts import ExecutorContext
from paged_core.errors import PluginError, SettingsError, error_text
from paged_core.ids import SeqId
from paged_core.interfaces.executor import Capacity, Executor
from paged_core.plugins.making import make_component
from paged_core.sampling_params import SamplingParams
from paged_core.step import NewSequence, StepInput, StepResult
from paged_plugins.lab.cost_model import IDLE_SECONDS, CostModel, CostModelContext, StepWork
from paged_plugins.lab.runs.work_count import CountedSequence, WorkCount
from paged_plugins.lab.settings import SimulatedSettings

_MOST_SECONDS = 1e9
"""Longest step: more is taken for a mistake."""


class CheckedCostModel(CostModel):
    """Passes calls on to a cost model.

    Args:
        name: of its component.

    Raises:
        PluginError: from its methods: the cost model raised, or its answer is no possible one.
        SettingsError: from those that size the cache, as the cost model raised it.
    """

    def __init__(self, inner: CostModel, name: str) -> None:
        self._inner = inner
        self._what = f"cost_model {name!r}"

    def seconds(self, work: StepWork, /) -> float:
        with self._named():
            seconds = self._inner.seconds(work)
        if type(seconds) is bool or not isinstance(seconds, int | float) or not 0 < seconds < inf:
            self._refuse(seconds, "seconds() has to return the seconds of a step, above 0")
        if seconds > _MOST_SECONDS:
            raise PluginError(
                f"{self._what}: a step would take more than {_MOST_SECONDS:g} s; change its options"
            )
        return seconds

    def is_extrapolated(self, work: StepWork, /) -> bool:
        with self._named():
            return bool(self._inner.is_extrapolated(work))

    def num_blocks(self, block_size: int, /) -> int | None:
        with self._named(SettingsError):
            count = self._inner.num_blocks(block_size)
        return self._count(count, "num_blocks() has to return")

    @property
    def max_model_len(self) -> int | None:
        with self._named(SettingsError):
            length = self._inner.max_model_len
        return self._count(length, "max_model_len has to be")

    @property
    def may_extrapolate(self) -> bool:
        """Return whether it says of any work that its time is extrapolated."""
        return type(self._inner).is_extrapolated is not CostModel.is_extrapolated

    def _count(self, answer: int | None, rule: str) -> int | None:
        if answer is not None and (type(answer) is not int or answer < 1):
            self._refuse(answer, f"{rule} an int, 1 or more, or None")
        return answer

    def _refuse(self, answer: Any, rule: str) -> NoReturn:
        raise PluginError(
            f"{self._what} answered {answer!r:.80}; {rule} "
            "(paged_plugins.lab.testing.CostModelConformance tests it)"
        )

    @contextmanager
    def _named(self, *told: type[Exception]) -> Iterator[None]:
        """Name the cost model in what it raises, but for ``told``, which are meant for the user."""
        try:
            yield
        except told:
            raise
        except Exception as error:
            raise PluginError(f"{self._what} raised {error_text(error)}") from error


_POSITION_BITS = 22
"""Bits of the position in a token id; the bits above are a hash of the sequence."""
_FIRST = 1 << 59
"""Token ids begin here, above those of any prompt; below ``1 << 60`` Python's integers are small
and fast."""
_LOWEST = -8.0
"""No log-probability is lower."""


class Answers:
    """Draws tokens that no other request draws: a hash of the request, and the position.

    Sequences of one request differ if they are sampled, and are equal if they are greedy.
    """

    def __init__(self) -> None:
        self._first: dict[SeqId, int] = {}
        """To which the position is added."""
        self._special: dict[SeqId, int] = {}
        """Sequences that do not just draw a token, and how many tokens they draw next; of a beam,
        its last token."""

    @property
    def are_plain(self) -> bool:
        """Return whether each sequence draws one token and nothing more."""
        return not self._special

    def learn(self, step: StepInput) -> None:
        """Forget and add the sequences that a step removes and adds."""
        for seq_id in step.removed:
            self._first.pop(seq_id, None)
            self._special.pop(seq_id, None)
        for new in step.added:
            self._first[new.id] = _first_token(new, new.index)
            if new.fan_out > 1 or new.num_candidates or _asks_more(new.sampling):
                self._special[new.id] = new.tokens[-1] if new.num_candidates else new.fan_out

    def sample(self, complete: Sequence[CountedSequence]) -> StepResult:
        """Draw a token for each sequence, or several where it fans out, or candidates of a beam."""
        first = self._first
        if self.are_plain:
            ids = [sequence.id for sequence in complete]
            tokens = [first[sequence.id] + sequence.num_computed for sequence in complete]
            return StepResult(sequence_ids=ids, token_ids=tokens)
        asked = any(each.new.sampling.needed_logprobs is not None for each in complete)
        result = StepResult(logprobs=[] if asked else None)
        for sequence in complete:
            self._draw_one(sequence, result)
        return result

    def clear(self) -> None:
        """Forget all sequences."""
        self._first.clear()
        self._special.clear()

    def _draw_one(self, sequence: CountedSequence, result: StepResult) -> None:
        new = sequence.new
        refusal = _refusal(new.sampling)
        if refusal:
            result.failed[new.id] = refusal
            return
        if new.num_candidates:
            result.candidates[new.id] = _rank(self._special[new.id], new.num_candidates)
            return
        place = sequence.num_computed
        others = range(new.index + 1, new.index + self._special.get(new.id, 1))
        tokens = [self._first[new.id] + place]
        tokens += [_first_token(new, index) + place for index in others]
        if new.id in self._special:
            self._special[new.id] = 1
            if not _asks_more(new.sampling):
                del self._special[new.id]
        result.sequence_ids.extend([new.id] * len(tokens))
        result.token_ids.extend(tokens)
        if result.logprobs is not None:
            wanted = new.sampling.needed_logprobs is not None
            reported = [{each: _logprob(each)} if wanted else None for each in tokens]
            result.logprobs.extend(reported)


def _first_token(new: NewSequence, index: int) -> int:
    """The token that the ``index``-th sequence of a request would have at position 0."""
    stream = 0 if new.sampling.temperature == 0 else index
    return _FIRST + (_hash(f"{stream} {new.request_id}") << _POSITION_BITS)


def _hash(text: str) -> int:
    """37 bits."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=5).digest()
    return int.from_bytes(digest, "big") >> 3


def _logprob(token: int) -> float:
    """Return the log-probability of a token: arbitrary, but repeatable."""
    return _LOWEST * (_hash(str(token)) % 1000) / 1000


def _rank(last: int, count: int) -> dict[int, float]:
    """Return log-probabilities of the continuations of a beam by token id, best first."""
    first = _FIRST + (_hash(f"beam {last}") << _POSITION_BITS)
    noise = [_logprob(first + place) / _LOWEST for place in range(count)]
    return {first + place: -0.5 * (place + noise[place]) for place in range(count)}


def _asks_more(sampling: SamplingParams) -> bool:
    """Return whether more than sampled tokens is to be reported of a sequence."""
    return sampling.needed_logprobs is not None or _refusal(sampling) is not None


def _refusal(sampling: SamplingParams) -> str | None:
    """Why a request cannot be simulated, if it cannot."""
    if sampling.prompt_logprobs is not None:
        return "prompt_logprobs need a model, and the executor 'simulated' has none; leave them out"
    if sampling.logits_processors:
        return "logits_processors need logits, which the executor 'simulated' has none of"
    return None


class SteadyBatch:
    """The steps that repeat one batch: each sequence computes one more token and draws the next.

    What such a step computes and draws follows from the step before, without a look at every
    sequence; most steps of a simulation are of this kind. The counts of the sequences stand still
    meanwhile: :meth:`settle` makes up for it.

    Args:
        sequences: of the batch, in order, each with all of its tokens computed.
        sampled: the step before sampled these tokens, one for each sequence, and nothing else.
    """

    def __init__(self, sequences: Sequence[CountedSequence], sampled: StepResult) -> None:
        self._sequences = sequences
        self._ids, self._tokens = sampled.sequence_ids, sampled.token_ids
        self._ones = [1] * len(sequences)
        self._context = sum(sequence.num_computed for sequence in sequences)
        self._num_steps = 0

    def repeats(self, step: StepInput) -> bool:
        """Return whether ``step`` is another one of this batch."""
        return (
            step.sequence_ids == self._ids
            and step.num_tokens == self._ones
            and not step.added
            and not step.removed
        )

    def next(self, step: StepInput) -> tuple[StepWork, StepResult]:
        """Return the work in a step that repeats the batch, and what it draws."""
        count = len(self._ones)
        work = StepWork(
            decode_sequences=count,
            decode_context=self._context,
            sampled_rows=count,
            copied_blocks=len(step.copy_sources),
            swapped_blocks=len(step.swap_out_sources) + len(step.swap_in_sources),
        )
        self._num_steps += 1
        self._context += count
        self._tokens = [token + 1 for token in self._tokens]
        return work, StepResult(sequence_ids=self._ids, token_ids=self._tokens)

    def settle(self) -> None:
        """Count what the repeated steps computed; the batch repeats no longer."""
        for sequence in self._sequences:
            sequence.num_computed += self._num_steps
            sequence.num_tokens += self._num_steps


MAX_BLOCKS = 4_000_000
"""Blocks that a block allocator keeps account of without a model, at most."""
_NUM_TOKENS = 65_536
"""Slots of the cache, where neither the settings nor the cost model say how many there are."""


class SimulatedExecutor(Executor):
    """Runs steps without a model: each takes the time that the cost model predicts.

    A step begins when it is submitted or when the one before it ends, whichever is later, so that
    ``async_scheduling`` hides the time of planning as on a device. ``collect`` moves the clock to
    its end: a virtual one of its own, or the one that the engine was given, if that can sleep (on
    the time of this machine a simulation takes as long as what it simulates).

    Any token id is served, none ends a sequence, and each sequence draws tokens of its own: greedy
    sequences of one request draw the same, as a model would. Beams are ranked, and
    log-probabilities reported, by arbitrary but repeatable numbers. A request that needs logits
    (logits processors, log-probabilities of the prompt) fails, with that reason.
    """

    def __init__(self, options: SimulatedSettings, context: ExecutorContext, /) -> None:
        self._settings = context.settings
        self._needs_host_blocks = context.needs_host_blocks
        chosen = dict(context.settings)["cost_model"]
        made = CostModelContext(settings=context.settings, maker=context.maker)
        self.cost_model = CheckedCostModel(
            make_component(context.registry, "cost_model", chosen, made), chosen.name
        )
        """Predicts the time of a step."""
        self._may_extrapolate = self.cost_model.may_extrapolate
        self.clock: Clock = context.clock if isinstance(context.clock, Clock) else VirtualClock()
        self._count = WorkCount()
        self._answers = Answers()
        self._steady: SteadyBatch | None = None
        """The last step, if the next one may repeat it."""
        self._ends = 0.0
        """When the last step that was submitted ends."""
        self.watch: Callable[[StepWork], None] = lambda work: None
        """Called with the work of each step that is collected."""
        self.num_extrapolated = 0

    def start(self) -> Capacity:
        self.close()  # it may have been lost
        settings, size = self._settings, self._settings.block_size
        num_blocks = settings.num_blocks or self.cost_model.num_blocks(size)
        num_blocks = num_blocks or max(1, _NUM_TOKENS // size)
        num_host_blocks = settings.num_host_blocks
        if num_host_blocks is None:
            num_host_blocks = num_blocks if self._needs_host_blocks else 0
        if num_blocks + num_host_blocks > MAX_BLOCKS:
            raise SettingsError(
                f"num_blocks={num_blocks} and num_host_blocks={num_host_blocks}: a simulation has "
                f"{MAX_BLOCKS:,} blocks at most; lower one of them or raise block_size"
            )
        longest = min(self.cost_model.max_model_len or MAX_BLOCKS, num_blocks * size)
        return Capacity(
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            max_model_len=settings.max_model_len or longest,
        )

    def submit(self, step: StepInput, /) -> Any:
        work, result = self._run(step)
        now = self.clock()
        work.after_idle = int(now - self._ends > IDLE_SECONDS)
        self._ends = max(now, self._ends) + self.cost_model.seconds(work)
        if self._may_extrapolate:
            self.num_extrapolated += self.cost_model.is_extrapolated(work)
        return work, result, self._ends

    def _run(self, step: StepInput) -> tuple[StepWork, StepResult]:
        """Return the work in a step and what it draws."""
        if self._steady is not None:
            if self._steady.repeats(step):
                return self._steady.next(step)
            self._steady.settle()
            self._steady = None
        self._answers.learn(step)
        work, complete = self._count.take(step)
        is_plain = self._answers.are_plain
        result = self._answers.sample(complete)
        if is_plain and len(complete) == len(step.sequence_ids):
            self._steady = SteadyBatch(complete, result)
        return work, result

    def collect(self, handle: Any, /) -> StepResult:
        work, result, ends = handle
        now = self.clock()
        if ends > now:
            self.clock.sleep(ends - now)
        self.watch(work)
        return cast("StepResult", result)

    def close(self) -> None:
        self._count.clear()
        self._answers.clear()
        self._steady = None
