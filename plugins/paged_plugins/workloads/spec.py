"""The written form of a workload: in `ablation.yaml`, in a file of its own, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict, StrictStr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from paged_core.errors import SettingsError
from paged_plugins.files import Document, mistakes
from paged_plugins.workloads.arrivals import Arrivals, AtOnce, Gamma, Poisson, Replay
from paged_plugins.workloads.batch import NAMED
from paged_plugins.workloads.request_class import (
    MOST_PREFIXES,
    MixedClass,
    RequestClass,
    TraceLengths,
)
from paged_plugins.workloads.traces.files import TokenCount, estimated_tokens
from paged_plugins.workloads.traces.trace import Trace, TraceSpec
from paged_plugins.workloads.workload import DrawnWorkload, TraceWorkload, Workload

MAX_REQUESTS = 10_000_000
"""More is taken for a typing error."""
DEFAULT_REQUESTS = 100


def _some(mix: Any) -> Any:
    if isinstance(mix, list | tuple) and not mix:
        raise PydanticCustomError("mix", "name one class at least, or leave it out")
    return mix


class WorkloadSpec(RequestClass):
    """A workload by its distributions; frozen, picklable, and written as it was read."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=200)] = "workload"
    about: StrictStr = ""
    requests: Annotated[int, Strict(), Field(ge=1, le=MAX_REQUESTS)] | None = None
    """Requests in all, those that follow others among them; by default all of a trace, and
    otherwise 100."""
    arrivals: Arrivals | None = None
    """Arrivals of requests that follow no other; by default as a trace has them, otherwise all at
    once."""
    trace: TraceSpec | None = None
    """The file that has the requests; then nothing about them is drawn, unless their arrivals."""
    batch: StrictStr | None = None
    """The name of a batch of :mod:`paged_plugins.workloads.batch`, which has the requests; then
    nothing about them is drawn."""
    mix: Annotated[tuple[MixedClass, ...], BeforeValidator(_some), Field(max_length=100)] = ()
    """Classes of requests, each with the keys of a class and its weight; what a class leaves out is
    as the workload says it."""

    @model_validator(mode="before")
    @classmethod
    def _inherit(cls, values: Any) -> Any:
        """Fill in what the classes of the mix leave out."""
        mix = values.get("mix") if isinstance(values, Mapping) else None
        if not isinstance(mix, list | tuple):
            return values
        own = {key: values[key] for key in RequestClass.model_fields if key in values}
        filled = [{**own, **each} if isinstance(each, Mapping) else each for each in mix]
        return {**values, "mix": filled}

    @model_validator(mode="after")
    def _possible(self) -> WorkloadSpec:
        drawn = sorted(self.model_fields_set & {*RequestClass.model_fields, "mix"})
        if self.trace and drawn:
            raise PydanticCustomError(
                "trace", f"the trace says what is asked; leave `{drawn[0]}` out"
            )
        without_times = [each.lengths for each in (self, *self.mix)]
        unused = [each.trace for each in without_times if isinstance(each, TraceLengths)]
        unused += [self.trace] if self.trace and self.arrivals else []
        if any(trace.scale != 1 for trace in unused):
            raise PydanticCustomError(
                "scale", "the times of this trace are not used; leave its `scale` out"
            )
        if self.batch is not None:
            drawn += sorted(self.model_fields_set & {"trace", "arrivals", "requests"})
            if drawn:
                raise PydanticCustomError(
                    "batch", f"the batch says what is asked; leave `{drawn[0]}` out"
                )
            if self.batch not in NAMED:
                raise PydanticCustomError("batch", f"batches are {', '.join(NAMED)}")
        if sum(each.prefixes.num_shared for each in self.mix or (self,)) > MOST_PREFIXES:
            raise PydanticCustomError("prefixes", f"more than {MOST_PREFIXES:,} shared texts")
        return self

    def build(self, count_tokens: TokenCount = estimated_tokens) -> Workload:
        """Return what draws the requests.

        Args:
            count_tokens: how many tokens a text of a trace has; by default an estimate.
        """
        if self.batch is not None:
            return NAMED[self.batch]
        if self.trace:
            return TraceWorkload(self.name, self.trace, self.requests, self.arrivals, count_tokens)
        own = {key: getattr(self, key) for key in RequestClass.model_fields}
        return DrawnWorkload(
            self.name,
            self.requests or DEFAULT_REQUESTS,
            self.arrivals or AtOnce(),
            self.mix or (MixedClass.model_construct(**own),),
            count_tokens,
        )

    def check(self) -> str | None:
        """Draw a request, or all of them where files or classes bound how many there are.

        Returns:
            A note, if there are fewer than ``requests``, or a trace leaves lengths out.

        Raises:
            SettingsError: there is none, the lengths contradict each other, or a file is broken.
        """
        is_bounded = any(self.traces()) or (self.mix and all(each.first for each in self.mix))
        count = 0
        for first in self.build().draw(0):
            count += sum(1 for _ in first.family())
            if not is_bounded:
                return None
        notes = list(filter(None, (trace.note() for trace in self.traces())))
        if self.requests is not None and count < self.requests:
            notes.append(
                f"note: {self.name} has {count:,} requests, and not the {self.requests:,} it asks "
                "for"
            )
        return "\n".join(notes) or None

    def rate(self) -> float | None:
        """Return the mean rate at which first requests arrive, a second; ``None``: all arrive at
        once.

        What is drawn has the rate of its processes, those of classes with a ``first`` left out; a
        trace that of its requests.

        Raises:
            TraceError: a trace cannot be read.
        """
        shared = (
            [self.arrivals] if not self.mix or any(not one.arrivals for one in self.mix) else []
        )
        own = [one.arrivals for one in self.mix if one.arrivals and one.first is None]
        rates = [process.mean_rate if process else None for process in (*shared, *own)]
        if rates and None not in rates:
            total = sum(filter(None, rates))
            return total if isfinite(total) else None
        times = [first.at for first in self.build().draw(0)]
        return (len(times) - 1) / (times[-1] - times[0]) if times and times[-1] > times[0] else None

    @property
    def draws_nothing(self) -> bool:
        """Return whether all seeds give the same requests: those of a trace, or of a batch."""
        is_drawn = isinstance(self.arrivals, Poisson | Gamma)
        return self.batch is not None or (self.trace is not None and not is_drawn)

    def faster(self, factor: float) -> WorkloadSpec:
        """Return the same requests, whose first ones arrive so many times as fast."""
        first: dict[str, Any] = {}
        if self.arrivals:
            first["arrivals"] = self.arrivals.faster(factor)
        elif self.trace:
            first["trace"] = self.trace.faster(factor)
        mix = tuple(
            one.model_copy(update={"arrivals": one.arrivals.faster(factor)})
            if one.arrivals
            else one
            for one in self.mix
        )
        return self.model_copy(update={**first, "mix": mix})

    def traces(self) -> Iterator[Trace]:
        """Yield the files that it reads."""
        if self.trace:
            yield self.trace
        processes = [self.arrivals, *(each.arrivals for each in self.mix)]
        lengths = [self.lengths, *(each.lengths for each in self.mix)]
        yield from (each.trace for each in processes if isinstance(each, Replay))
        yield from (each.trace for each in lengths if isinstance(each, TraceLengths))

    def has_text(self) -> bool:
        """Return whether tokens are counted in texts of a trace.

        Raises:
            TraceError: a trace cannot be read, or its format is unknown.
        """
        return any(trace.has_text() for trace in self.traces())

    def written(self) -> dict[str, Any]:
        """Return it as a mapping of plain values, which reads back as an equal specification.

        What is as by default is left out, but for the lengths: a reader asks for them first.
        """
        written = self.model_dump(mode="json", exclude_defaults=True) | {"name": self.name}
        classes: list[tuple[RequestClass, dict[str, Any]]] = [(self, written)]
        if self.mix:
            classes = list(zip(self.mix, written["mix"], strict=True))
        for each, values in classes if self.trace is None and self.batch is None else ():
            values["lengths"] = each.lengths.model_dump(mode="json", exclude_defaults=True)
        return written


def parse_spec(values: Any, source: str, document: Document | None = None) -> WorkloadSpec:
    """Return the specification that a mapping of plain values is.

    Args:
        source: what the error calls it: a file, or ``workload 2 of ablation.yaml``.
        document: that it is the whole of, to name lines.

    Raises:
        SettingsError: it is none; the message says which keys are wrong.
    """
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"{source} is not a workload: give a mapping with the keys of a workload, such as "
            "`lengths: sharegpt`"
        )
    if "axes" in values:
        raise SettingsError(
            f"{source} is not a workload: it has `axes`, as a study does, which "
            "`paged-core lab run` runs; name one of its workloads"
        )
    try:
        return WorkloadSpec.model_validate(values)
    except ValidationError as error:
        problems = mistakes(error, WorkloadSpec, values, document)
        raise SettingsError(f"{source} is not a workload: {problems}") from None
