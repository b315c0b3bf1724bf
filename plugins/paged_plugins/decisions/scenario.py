"""A scenario: an engine's settings and the requests it receives, with known output lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StrictInt,
    StrictStr,
    model_validator,
)

from paged_plugins.decisions.replay_request import (
    FIRST_OWN_ID,
    ReplayRequest,
    drawn_requests,
    own_ids,
    prefix_ids,
    whole_lengths,
)
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.spec import WorkloadSpec

MAX_PROMPT = 10_000_000
"""Largest prompt in tokens; a larger one is taken for a typing error."""
MAX_TOKENS = 100_000_000
"""Prompts and outputs of a scenario together."""
MAX_READS = 10**11
"""Tokens that all steps read back together, at most: for each output token, its whole sequence."""
MAX_DRAWN = 200_000
"""Requests that a workload of a scenario draws."""
_MAX_PREFIXES = 10_000
_DRAWN_STEPS = 1_000_000
"""The default of ``max_steps`` of a scenario with a workload."""
_MAX_STEPS = 10**12
_MAX_SECONDS = 1e12
_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})", re.ASCII)

Step = Annotated[int, Strict(), Field(ge=0, lt=_MAX_STEPS)]
Seconds = Annotated[float, Strict(), Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Strict(), Field(gt=0, le=MAX_TOKENS)]


def _ranges(prompt: str) -> list[range]:
    found = [_RANGE.fullmatch(part) for part in prompt.split()]
    if not all(found):
        raise ValueError(
            f"the prompt {prompt!r:.80} is neither a length nor ranges such as "
            "'1000:1048 2000:2007'"
        )
    return [range(int(each[1]), int(each[2])) for each in found if each]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_prompt(prompt: int | str) -> int | str:
    """Return a prompt that is a length or ranges of ids, and not too long."""
    ranges = [range(prompt)] if isinstance(prompt, int) else _ranges(prompt)
    if not ranges or not all(ranges):
        raise ValueError(f"the prompt {prompt!r:.80} has no tokens, or an empty range")
    if sum(each.stop - each.start for each in ranges) > MAX_PROMPT:
        raise ValueError(f"the prompt {prompt!r:.80} has more than {MAX_PROMPT:,} tokens")
    if max(each.stop for each in ranges) > FIRST_OWN_ID:
        raise ValueError(f"the prompt {prompt!r:.80} has a token id of {FIRST_OWN_ID:,} or more")
    return prompt


def _named_workload(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in names():
        raise ValueError(
            f"no workload is called {value!r:.80}; there are {', '.join(names())}, or give a "
            "mapping with the keys of a workload"
        )
    return workload_spec(value)


def _without_files(workload: WorkloadSpec) -> WorkloadSpec:
    """Refuse a workload that reads files: the scenario may be a stranger's."""
    for trace in workload.traces():
        raise ValueError(
            f"it reads the file {str(trace.file)!r:.80}, and a scenario reads no other files; "
            "write `requests`, or give the file to `paged-core simulate`"
        )
    return workload


Workload = Annotated[WorkloadSpec, BeforeValidator(_named_workload), AfterValidator(_without_files)]
Prompt = StrictInt | StrictStr
"""A length, or ranges of token ids."""


class ScenarioRequest(_Strict):
    """One request of a scenario."""

    id: StrictStr
    step: Step = 0
    at: Seconds | None = None
    follows: StrictStr | None = None
    after: Seconds = 0.0
    prefix: StrictStr | None = None
    prompt: Prompt
    output: Count
    priority: Annotated[int, Strict(), Field(gt=-(2**63), lt=2**63)] = 0
    n: Count = 1
    cache_salt: StrictStr | None = None
    tenant: StrictStr = ""
    deadline: Seconds | None = None

    @model_validator(mode="after")
    def _can_be_served(self) -> ScenarioRequest:
        given = [
            key
            for key in ("step", "at", "follows")
            if key in self.model_fields_set and (key == "step" or getattr(self, key) is not None)
        ]
        if len(given) > 1:
            raise ValueError(f"`{given[0]}` and `{given[1]}` exclude each other; give one of them")
        if "after" in self.model_fields_set and self.follows is None:
            raise ValueError("`after` is for a request that `follows` another; give `at`")
        if self.prefix is not None and self.follows is not None:
            raise ValueError(
                "`prefix` and `follows` exclude each other: it begins with the other's prompt"
            )
        _check_prompt(self.prompt)
        return self

    def asked(self, number: int, prefixes: Mapping[str, tuple[range, ...]]) -> ReplayRequest:
        """Return what it asks, as the ``number``-th request of a replay."""
        is_length, known = isinstance(self.prompt, int), prefixes.get(self.prefix or "", ())
        own = [own_ids(number, int(self.prompt))] if is_length else _ranges(str(self.prompt))
        return ReplayRequest(
            id=self.id,
            number=number,
            prompt=(*known, *own),
            output=self.output,
            n=self.n,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            deadline=self.deadline,
            step=self.step if self.at is None and self.follows is None else None,
            at=self.at,
            follows=self.follows,
            after=self.after,
        )


class ScenarioAbort(_Strict):
    """A request that is aborted just before a step is scheduled."""

    id: StrictStr
    step: Step


class Scenario(_Strict):
    """Settings and requests. ``settings`` are the engine's own, by keyword."""

    name: StrictStr
    about: StrictStr = ""
    settings: dict[StrictStr, Any]
    prefixes: Annotated[dict[StrictStr, Prompt], Field(max_length=_MAX_PREFIXES)] = {}
    requests: tuple[ScenarioRequest, ...] = ()
    workload: Workload | None = None
    seed: Annotated[int, Strict(), Field(ge=0, lt=2**63)] = 0
    aborts: tuple[ScenarioAbort, ...] = ()
    seconds_per_step: Annotated[Seconds, Field(gt=0)] = 1.0
    max_steps: Annotated[Step, Field(gt=0)] = 200

    @model_validator(mode="before")
    @classmethod
    def _more_steps(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("workload") is not None:
            return {"max_steps": _DRAWN_STEPS, **values}
        return values

    @cached_property
    def asked(self) -> tuple[ReplayRequest, ...]:
        """All requests, those of the workload after the others."""
        prefixes = {
            name: (prefix_ids(number, prompt),)
            if isinstance(prompt, int)
            else tuple(_ranges(prompt))
            for number, (name, prompt) in enumerate(self.prefixes.items())
        }
        own = [each.asked(number, prefixes) for number, each in enumerate(self.requests)]
        return (*own, *self._drawn(len(own)))

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if not self.requests and self.workload is None and "requests" not in self.model_fields_set:
            raise ValueError("give `requests`, or a `workload` that draws them")
        if "seed" in self.model_fields_set and self.workload is None:
            raise ValueError("`seed` is of the `workload`, and there is none; leave it out")
        for prompt in self.prefixes.values():
            _check_prompt(prompt)
        self._check_requests()
        self._check_aborts()
        if "num_blocks" not in self.settings:
            raise ValueError("give settings.num_blocks: without a model it cannot be measured")
        if "observers" in self.settings:
            raise ValueError(
                "leave settings.observers out, which can write files; give --observers instead"
            )
        num_tokens = sum(
            length + each.n * each.output for each, length in whole_lengths(self.asked)
        )
        if num_tokens > MAX_TOKENS:
            raise ValueError(
                f"its prompts and outputs have {num_tokens:,} tokens together, and a replay takes "
                f"{MAX_TOKENS:,} at most; shorten them or split it"
            )
        return self

    def _check_requests(self) -> None:
        """Check that requests name prefixes that there are, and requests above them."""
        known: set[str] = set()
        for request in self.requests:
            if request.id in known:
                raise ValueError(f"two requests have the same id, {request.id!r:.80}")
            if request.prefix is not None and request.prefix not in self.prefixes:
                raise ValueError(
                    f"{request.id!r:.80} begins with the prefix {request.prefix!r:.80}, which "
                    "`prefixes` does not have"
                )
            if request.follows is not None and request.follows not in known:
                raise ValueError(
                    f"{request.id!r:.80} follows {request.follows!r:.80}, which no request above "
                    "it is called"
                )
            known.add(request.id)

    def _check_aborts(self) -> None:
        arrivals = {each.id: each.step or 0 for each in self.asked}
        for abort in self.aborts:
            if abort.id not in arrivals:
                raise ValueError(f"`aborts` names {abort.id!r:.80}, which no request is called")
            if abort.step < arrivals[abort.id]:
                raise ValueError(f"`aborts` ends {abort.id!r:.80} before it has arrived")

    def _drawn(self, first_number: int) -> Iterator[ReplayRequest]:
        """Yield the requests of the workload, as long as a replay can take so many."""
        if self.workload is None:
            return
        known = {request.id for request in self.requests}
        drawn = drawn_requests(self.workload.build().draw(self.seed), first_number)
        num_tokens = 0
        for count, (request, length) in enumerate(whole_lengths(drawn), 1):
            num_tokens += length + request.n * request.output
            if num_tokens > MAX_TOKENS or count > MAX_DRAWN:
                raise ValueError(
                    f"its workload draws more than {MAX_DRAWN:,} requests or {MAX_TOKENS:,} "
                    "tokens, and a replay takes no more; lower `requests` or the lengths"
                )
            if request.id in known:
                raise ValueError(f"two requests have the same id, {request.id!r:.80}")
            yield request
