"""A class of requests: what those of one kind of user ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from paged_plugins.workloads.amount import Amount, Fixed
from paged_plugins.workloads.arrivals import Arrivals
from paged_plugins.workloads.lengths import NAMED_LENGTHS, LengthsSpec
from paged_plugins.workloads.prefixes import Prefixes, PrefixesSpec
from paged_plugins.workloads.spec_model import SpecModel

Weight = Annotated[float, Field(gt=0, le=1e9)]
Priority = Annotated[int, Field(gt=-(2**63), lt=2**63)]


def _weights(value: Any) -> Any:
    """Read one value, or a list of equally frequent ones, as weights."""
    if isinstance(value, Mapping):
        return value
    return dict.fromkeys(value if isinstance(value, list | tuple) else [value], 1.0)


class RequestClass(SpecModel):
    """Distributions of what requests of one class ask."""

    lengths: LengthsSpec = NAMED_LENGTHS["sharegpt"]
    prefixes: PrefixesSpec = Prefixes()
    n: Amount = Fixed(value=1)
    """Sequences that are sampled for each request."""
    tenants: Annotated[
        dict[str, Weight], BeforeValidator(_weights), Field(min_length=1, max_length=100_000)
    ] = Field(default={"": 1.0})
    """Each first request belongs to one of these, with those that follow it."""
    priorities: Annotated[
        dict[Priority, Weight], BeforeValidator(_weights), Field(min_length=1, max_length=1000)
    ] = Field(default={0: 1.0})
    """Drawn as tenants are. Lower is more urgent."""
    deadline: Amount | None = None
    """Seconds after its arrival by which each request wants to be finished."""
    cache_salt: Literal["none", "tenant", "session"] = "none"
    """Among whom cached blocks are shared: all, the tenant's requests, those of one session."""
    max_tokens: Annotated[int, Strict(), Field(ge=2, le=10_000_000)] | None = None
    """Longest prompt and answer together: a conversation ends before it would be longer, and a
    single request is shortened, first its answer, then its prompt."""


class MixedClass(RequestClass):
    """One of the classes that a workload mixes."""

    weight: Weight = 1.0
    """Its share of the workload's arrivals, compared with the other classes that have one."""
    arrivals: Arrivals | None = None
    """A process of its own instead of that share."""
    first: Annotated[int, Strict(), Field(ge=1, le=10**9)] | None = None
    """With arrivals of its own: so many first requests, and no more."""

    @model_validator(mode="after")
    def _share_or_process(self) -> MixedClass:
        given = self.model_fields_set
        if self.arrivals is not None and "weight" in given:
            raise PydanticCustomError("weight", "`weight` and `arrivals` exclude each other")
        if self.arrivals is None and self.first is not None:
            raise PydanticCustomError("first", "`first` needs `arrivals` of this class")
        return self
