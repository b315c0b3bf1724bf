"""The engine's side of the line: serves what a front end asks, and tells it what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from paged_core.client.news import News, Refusal, Start, gain_of, to_ranked
from paged_core.engine.driver import EngineDriver
from paged_core.engine.engine import Engine
from paged_core.engine.outcome import StepOutcome
from paged_core.engine.wiring import executor_tokenizer
from paged_core.errors import EngineError, PluginError, RequestError
from paged_core.interfaces.observer import SupportsReport
from paged_core.request import Request
from paged_core.requests.grammars import compile_grammar, refusal
from paged_core.requests.pins import Pin, PinState
from paged_core.sequence import SequenceGroup, SequenceState
from paged_core.settings.schema import EngineSettings
from paged_core.text.generation import Generation


@dataclass(slots=True, eq=False)
class _Told:
    """Facts about a request that the front end knows."""

    number: int
    num_prompt: int
    """Tokens of its prompt."""
    is_plain: bool
    """True if the tokens of its only sequence are all there is to tell of it."""
    chooses_at_end: bool
    has_started: bool = False
    num_tokens: int = 0
    """Generated tokens that were told of its first sequence."""
    others: dict[int, int] = field(default_factory=dict)
    """The same of the other ones, by their index."""
    ended: set[SequenceState] = field(default_factory=set)


class EngineService:
    """Serves one front end with an engine, on the thread that calls :meth:`run`.

    All other methods may be called by any thread, and do not wait. Stop strings are looked for
    here, where the tokens are made: the engine then computes none after them, whatever way a front
    end is off.

    Args:
        tell: is given the news, on the engine's thread. It must not wait.
        between_steps: called on that thread before and after each step with whether one begins.
    """

    def __init__(
        self,
        engine: Engine,
        settings: EngineSettings,
        tell: Callable[[News], None],
        *,
        between_steps: Callable[[bool], None] | None = None,
    ) -> None:
        self.engine = engine
        self._driver = EngineDriver(engine, on_outcome=self._came_of, between_steps=between_steps)
        self._tell = tell
        self._tokenizer = executor_tokenizer(engine.executor)
        self._told: dict[SequenceGroup, _Told] = {}
        self._groups: dict[int, SequenceGroup] = {}
        self._compiling: dict[int, bool] = {}
        """Requests whose form is being compiled, and whether they are still wanted."""
        self._computed: list[tuple[Pin, Future[Any]]] = []
        """Pins whose prefix is being computed, and what waits for that."""
        names = [options.name for options in settings.observers]
        watching = engine.observers[len(engine.observers) - len(names) :]
        self._observers = dict(zip(names, watching, strict=True))
        self._questions: Mapping[str, Callable[..., Any]] = {
            "metrics": lambda: engine.metrics,
            "report": self._report,
            "pin": engine.pin,
            "release": self._release,
            "reset_prefix_cache": engine.reset_prefix_cache,
        }

    def run(self) -> None:
        """Serve until :meth:`close` is called.

        Raises:
            EngineError, PluginError: as :meth:`EngineDriver.run`; all requests have ended.
        """
        self._driver.run()

    def close(self) -> None:
        """End all requests and the engine; wait until that is done."""
        self._driver.close()

    # ------------------------------------------------------------------ what is asked

    def add(self, number: int, request: Request, *, age: float = 0.0) -> None:
        """Add a request, or tell why it is refused.

        Args:
            request: its arrival and deadline are on the front end's clock.
            age: seconds since its arrival.
        """
        began = monotonic()

        def add(form: Future[None] | None = None) -> None:
            waited = age + monotonic() - began
            self._driver.post(lambda engine: self._add(engine, number, request, waited, form))

        form = compile_grammar(self.engine.executor, request.sampling)
        if form is None:
            add()
        else:
            self._compiling[number] = True
            form.add_done_callback(add)

    def abort(self, number: int) -> None:
        """Abort a request, unless it has ended."""

        def abort(engine: Engine) -> None:
            if number in self._compiling:
                self._compiling[number] = False
            group = self._groups.get(number)
            if group is not None and engine.holds(group):
                engine.abort(group.id)

        self._driver.post(abort)

    def ask(self, question: str, **arguments: Any) -> Future[Any]:
        """Ask for ``metrics`` or ``report``, or to ``pin``, ``release``, ``reset_prefix_cache``."""
        answer: Future[Any] = Future()

        def ask(engine: Engine) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                found = self._questions[question](**arguments)
            except Exception as error:  # noqa: BLE001 - it is the answer
                answer.set_exception(error)
                return
            if isinstance(found, Pin):
                self._computed.append((found, answer))
            else:
                answer.set_result(found)

        posted = self._driver.post(ask)
        posted.add_done_callback(lambda done: _pass_on(done, answer))
        return answer

    def wake(self) -> None:
        """Have the thread that runs the steps show that it lives."""
        self._driver.post(lambda _: None)

    def _report(self, observer: str, since: int) -> Any:
        found = self._observers.get(observer)
        if found is None or not isinstance(found, SupportsReport):
            can = [key for key, each in self._observers.items() if isinstance(each, SupportsReport)]
            raise RequestError(
                f"this engine has no observer {observer!r} that reports; it has "
                f"{', '.join(can) or 'none'}: name it in the setting `observers`"
            )
        if found not in self.engine.observers:
            raise RequestError(f"observer {observer!r} has raised, and was dropped; see the log")
        return found.report(since)

    def _release(self, pin: str) -> None:
        held = next((each for each in self.engine.pins if each.id == pin), None)
        if held is None:
            raise RequestError(f"this engine has no pin {pin!r}")
        self.engine.release(held)

    def _add(
        self,
        engine: Engine,
        number: int,
        request: Request,
        age: float,
        form: Future[None] | None,
    ) -> None:
        is_wanted = self._compiling.pop(number, True)
        shift = engine.clock() - age - request.arrival  # to the engine's clock
        deadline = None if request.deadline is None else request.deadline + shift
        own = replace(request, arrival=request.arrival + shift, deadline=deadline)
        generation = Generation(own, None, self._tokenizer)
        try:
            if form is not None and (error := refusal(form)) is not None:
                raise error
            if own.sampling.stop and self._tokenizer is None:
                raise RequestError("a stop string needs a tokenizer, and this engine has none")
            group = generation.group = engine.add(own, generation.stop_check)
        except (RequestError, PluginError) as error:
            self._tell(News(refused=[Refusal.of(number, error)]))
            return
        sampling = own.sampling
        is_plain = sampling.width == 1 and sampling.needed_logprobs is None
        self._told[group] = _Told(
            number, len(own.prompt), is_plain, chooses_at_end=sampling.chooses_at_end
        )
        self._groups[number] = group
        if not is_wanted:
            engine.abort(group.id)

    # ------------------------------------------------------------------ what came of it

    def _came_of(self, outcome: StepOutcome) -> None:
        """Tell what a step has changed."""
        news = News()
        numbers, token_ids, requests = news.numbers, news.token_ids, self._told
        for sequence in outcome.advanced:
            told = requests.get(sequence.group)
            if told is None or told.chooses_at_end:
                continue
            if told.is_plain and told.has_started and sequence.finish_reason is None:
                end = len(sequence.tokens) - told.num_prompt
                if end == told.num_tokens + 1:
                    told.num_tokens = end
                    numbers.append(told.number)
                    token_ids.append(sequence.tokens[-1])
                    continue
            self._advance(news, told, sequence)
        for group in outcome.finished:
            told = requests.pop(group, None)
            if told is None:
                continue
            self._start(news, told, group)
            for sequence in group.sequences:
                self._advance(news, told, sequence)
            news.ended.append(told.number)
            del self._groups[told.number]
        if news:
            self._tell(news)
        if self._computed:
            self._answer_pins()

    def _advance(self, news: News, told: _Told, sequence: SequenceState) -> None:
        """Add what a sequence gained, if anything."""
        if sequence in told.ended:
            return
        self._start(news, told, sequence.group)
        index, end = sequence.index, len(sequence.tokens) - told.num_prompt
        start = told.others.get(index, 0) if index else told.num_tokens
        ended = sequence.finish_reason is not None
        if not ended and end == start:
            return
        if index:
            told.others[index] = end
        else:
            told.num_tokens = end
        if ended:
            told.ended.add(sequence)
        news.gains.append(gain_of(told.number, sequence, start))

    def _start(self, news: News, told: _Told, group: SequenceGroup) -> None:
        if told.has_started:
            return
        told.has_started = True
        prompt = group.prompt_logprobs
        ranked = None
        if prompt is not None:
            ranked = [None if each is None else to_ranked(each) for each in prompt]
        news.starts.append(
            Start(number=told.number, num_cached=group.num_cached, prompt_logprobs=ranked)
        )

    def _answer_pins(self) -> None:
        """Answer for the pins whose prefix is computed, or cannot be."""
        waiting, self._computed = self._computed, []
        for pin, answer in waiting:
            if pin.state is PinState.COMPUTING:
                self._computed.append((pin, answer))
            elif pin.state is PinState.HELD:
                answer.set_result(pin.id)
            else:
                answer.set_exception(EngineError(f"the prefix is not pinned: {pin.end_reason}"))


def _pass_on(done: Future[Any], answer: Future[Any]) -> None:
    """Pass on that a question was not asked, since the engine has ended."""
    error = done.exception()
    if error is not None and not answer.done():
        answer.set_exception(error)
