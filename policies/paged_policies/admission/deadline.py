"""No request that would miss its deadline, as far as that can be predicted."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat

from paged_core.engine.contexts import AdmissionContext
from paged_core.interfaces.admission import Admission, Decision, Load, Refused
from paged_core.interfaces.observer import Observer, StepRecord
from paged_core.plugins.component import ComponentSettings
from paged_core.request import Request

_NEW, _KEPT = 0.02, 0.995
"""Share of the newest in moving means; what is kept of sums over steps, each step."""


class DeadlineSettings(ComponentSettings):
    """Options of :class:`DeadlineAdmission`."""

    name: Literal["deadline"] = "deadline"
    default_slo: PositiveFloat | None = Field(
        default=None,
        description="seconds from arrival to the deadline where a request names none; null: never",
    )
    margin: PositiveFloat = Field(
        default=1.0, le=1e3, description="factor on the predicted time; above 1 refuses more"
    )


class DeadlineAdmission(Admission, Observer):
    """Early refusal of what would end after its deadline.

    A request ends after those before it that have no seat or no blocks have taken the places of
    others, at the rate at which requests ended lately while some waited; then its prompt is
    computed at the highest rate that was seen, and its answer at the mean time of a step. The
    length is that of the ``length_predictor``, or ``max_tokens``, or else one token. Before it has
    seen steps it accepts all.

    Early rejection by prediction: Mooncake (Qin et al., FAST 2025); declining what cannot meet its
    SLO: SLOs-Serve (Chen et al., 2025).
    """

    def __init__(self, options: DeadlineSettings, context: AdmissionContext, /) -> None:
        self._options, self._lengths = options, context.length_predictor
        self._step_seconds = self._fastest = self._last_end = 0.0
        self._num_ended = self._seconds = 0.0
        """Requests that ended while some waited, and the seconds of these steps."""
        self._size = 0.0
        """Tokens of a request at its end."""

    def decide(self, request: Request, load: Load, now: float, /) -> Decision:
        deadline, slo = request.deadline, self._options.default_slo
        if deadline is None and slo is not None:
            deadline = request.arrival + slo
        length, output = len(request.prompt), self._output(request)
        if deadline is not None and self._step_seconds:
            wait = self._wait(load, length + output)
            alone = length / self._fastest + output * self._step_seconds
            late = now + self._options.margin * (wait + alone) - deadline
            if late > 0:
                again = late if late < wait else None
                return Refused(f"it would end {late:.2g} s after its deadline", again)
        self._size += (length + output - self._size) * (_NEW if self._size else 1)
        return None

    def _output(self, request: Request) -> float:
        expected = None if self._lengths is None else self._lengths.expect(request)
        return (request.sampling.max_tokens or 1) if expected is None else expected.tokens

    def _wait(self, load: Load, size: float) -> float:
        """Return the seconds until there is a place for a request of so many tokens."""
        if not self._num_ended:
            return 0.0
        missing = (load.num_waiting * self._size + size - load.free_tokens) / (self._size or size)
        if load.max_num_seqs is not None:
            missing = max(missing, load.num_running + load.num_waiting + 1 - load.max_num_seqs)
        return max(0.0, missing) * self._seconds / self._num_ended

    def on_step(self, step: StepRecord, /) -> None:
        seconds = step.ended - max(step.now, self._last_end)
        self._last_end, num_tokens = step.ended, sum(step.scheduled.values())
        if not num_tokens or seconds <= 0:
            return
        self._fastest = max(self._fastest, num_tokens / seconds)
        self._step_seconds += (seconds - self._step_seconds) * (_NEW if self._step_seconds else 1)
        if step.queues.waiting:
            self._num_ended = _KEPT * self._num_ended + len(step.finished)
            self._seconds = _KEPT * self._seconds + seconds
