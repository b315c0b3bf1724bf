"""Engines without a model, and strategies for their settings: any policies, too few blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import reject
from hypothesis import strategies as st

from paged_core.engine.engine import Engine
from paged_core.engine.wiring import build_engine
from paged_core.errors import RequestError, SettingsError
from paged_core.interfaces.observer import Observer
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry
from paged_core.request import Request
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.sampling_params import SamplingParams
from paged_core.sequence import SequenceGroup, Status
from paged_core.settings.schema import EngineSettings, settings_class
from paged_testing.availability import shortened
from paged_testing.options import component_options
from paged_testing.workloads import Workload

_UNDER_TEST = "under_test"


def registry_with(*parts: object) -> Registry:
    """Return a registry of everything installed, with ``parts`` added.

    Args:
        parts: records (:class:`~paged_core.plugins.component.Component` and the like) or modules
        with
            hooks, as an entry point would name them.

    Raises:
        PluginError: a part cannot be used; the message says why.
    """
    found = Registry.discover()
    return found.extended(*parts, plugin=_UNDER_TEST) if parts else found


def first_party(registry: Registry, *wanted: tuple[str, str]) -> Registry:
    """Return the plugins of a registry that come with the core, those with ``wanted`` parts, and
    what :func:`registry_with` added.

    Those that cannot be used bring no parts, and stay: one may be why a part is missing.

    Args:
        wanted: slots and names of components.
    """
    core = next(plugin for plugin in registry.plugins if plugin.name == "core")
    return Registry(
        tuple(
            plugin
            for plugin in registry.plugins
            if plugin.distribution == core.distribution
            or plugin.status != "active"
            or plugin.name == _UNDER_TEST
            or any((part.slot, part.name) in wanted for part in plugin.components)
        )
    )


MAX_IDLE_STEPS = 200
"""Steps in a row that may plan nothing while requests wait and none is to come."""


def build_memory_engine(
    registry: Registry | None = None,
    *,
    observers: Sequence[Observer | str | Mapping[str, Any]] = (),
    clock: Callable[[], float] | None = None,
    future: LookupOracle | None = None,
    **settings: Any,
) -> Engine:
    """Build an engine on the ``memory`` executor, which reads every scheduled sequence back.

    Args:
        registry: the source of components; by default, all that are installed.
        observers: instances, and names or tables of others, as in settings.
        clock: seconds; by default, the number of the step.
        future: the look-ups that evictors for replays get; by default, none.
        settings: of the engine; by default 64 blocks of 4 tokens and ``max_model_len`` 64.
    """
    registry = registry or Registry.discover()
    named = [other for other in observers if not isinstance(other, Observer)]
    return start_memory_engine(
        memory_settings(registry, observers=named, **settings),
        registry,
        observers=[observer for observer in observers if isinstance(observer, Observer)],
        clock=clock,
        future=future,
    )


def memory_settings(registry: Registry, **settings: Any) -> EngineSettings:
    """Settings for the ``memory`` executor; see :func:`build_memory_engine`."""
    small = {"executor": "memory", "num_blocks": 64, "block_size": 4, "max_model_len": 64}
    made, key = registry.memo.setdefault("memory settings", {}), repr(settings)
    if key not in made:  # to check settings takes the longest
        if len(made) > _MOST_SETTINGS:
            made.clear()
        made[key] = settings_class(registry)(**{**small, "checks": "full", **settings})
    found: EngineSettings = made[key]
    return found


_MOST_SETTINGS = 500
"""Settings that a registry keeps."""


def start_memory_engine(
    settings: EngineSettings,
    registry: Registry,
    *,
    observers: Sequence[Observer] = (),
    clock: Callable[[], float] | None = None,
    future: LookupOracle | None = None,
) -> Engine:
    """As :func:`build_memory_engine`, from settings that are made, and observers that are built."""
    engine = build_engine(settings, registry, observers=observers, future=future or LookupOracle())
    engine.clock = clock or StepClock(engine)
    return engine


class StepClock:
    """Clock on which each step of an engine takes a second; :func:`serve` skips holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.skipped = 0.0
        """Seconds that have passed besides."""

    def __call__(self) -> float:
        return self._engine.num_steps + self.skipped


def serve(engine: Engine, workload: Workload, *, max_steps: int = 1000) -> dict[str, SequenceGroup]:
    """Serve a workload to its end; return its groups by request id, without refused requests.

    Raises:
        AssertionError: it has not ended after ``max_steps``, nothing is planned any more (the
            message says what waits for what), or a policy raised.
    """
    scheduler = engine.scheduler
    groups: dict[str, SequenceGroup] = {}
    to_come = list(workload.requests)
    step = num_idle = 0
    while to_come or engine.has_unfinished:
        for request in [request for due, request in to_come if due <= step]:
            try:
                groups[request.id] = engine.add(request)
            except RequestError:
                continue
        to_come = [item for item in to_come if item[0] > step]
        due_aborts = [request_id for due, request_id in workload.aborts if due == step]
        for request_id in due_aborts:
            engine.abort(request_id)
        outcome = engine.step()
        if engine.scheduler is not scheduler:  # the policies were made anew
            errors = [each.error for group in outcome.finished for each in group.sequences]
            raise AssertionError(f"step {step}: {next(filter(None, errors), 'a policy raised')}")
        check_observers(engine)
        num_idle = 0 if outcome.progressed or to_come else num_idle + 1
        if isinstance(engine.clock, StepClock):
            engine.clock.skipped += engine.held_for
        assert num_idle < MAX_IDLE_STEPS, (
            f"step {step}: unfinished after {num_idle} steps without any progress: "
            f"{what_waits(engine)}"
        )
        step += 1
        assert step < max_steps, f"unfinished after {step} steps: {what_waits(engine)}"
    return groups


def check_observers(engine: Engine) -> None:
    """Check that no observer was dropped because it raised."""
    dropped = "; ".join(engine.dropped_observers)
    assert not dropped, f"an observer raised and was dropped: {shortened(dropped)}"


BOTH_PREEMPTIONS: Mapping[str, Any] = {"preemption": "swap", "num_host_blocks": 2}
"""Settings under which requests are swapped out, and recomputed where the host is full."""


class _Asked(NamedTuple):
    """One of the requests of a use, its prompt so long, and when it comes and is aborted."""

    length: int
    sampling: SamplingParams
    arrives: int = 0
    aborted: int | None = None


def _greedy(max_tokens: int, n: int = 1, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True, **more)


_UNEVEN = SamplingParams(max_tokens=8, n=4, temperature=1.0, stop_token_ids=range(0, 1024, 24))
"""Sequences of a request end at different times, by few tokens: what keeps a request keeps them."""
_USES: Sequence[Sequence[_Asked]] = (
    (  # three compete, one is aborted before it runs, and one while it runs
        *(_Asked(length, _greedy(6)) for length in (8, 7, 6)),
        _Asked(5, _greedy(6), 1, 1),
        _Asked(4, _greedy(6), 0, 2),
    ),
    (  # forks decode beside a long prompt, which is aborted; one is refused
        _Asked(1, _greedy(3, n=4)),
        _Asked(16, _greedy(3), 0, 4),
        _Asked(6, _UNEVEN),
        _Asked(99, _greedy(3)),
    ),
    (  # the best of several are wanted
        _Asked(5, _greedy(3, n=2, beam_width=3)),
        _Asked(6, _greedy(3, n=2, best_of=3, temperature=1.0)),
        _Asked(8, _greedy(6)),
    ),
    (  # two long ones grow
        _Asked(7, _greedy(11)),
        _Asked(8, _greedy(9)),
        _Asked(3, _greedy(6), 1),
    ),
)


def serves_again(*engines: Engine, lasting: Engine | None = None) -> Callable[[int], object]:
    """Return what serves a few small requests of a number, which compete, to their end.

    Numbers take turns among the engines, and among what competes. The first request of each is of
    a tenant, session, salt and prefix that all have; others have another id, prompt, tenant,
    session, priority and deadline than any before, and those that have a cache salt, another.

    Args:
        lasting: an engine that is to :func:`go_on`.
    """

    def use(number: int) -> None:
        turn, asked = number // len(_USES) % 3, _USES[number % len(_USES)]
        digits = tuple(1 + number // 3**place % 3 for place in range(8))
        requests, aborts = list[tuple[int, Request]](), list[tuple[int, str]]()
        for place, each in enumerate(asked):
            name = f"{number}.{place}" if place else " of all"
            prompt = (digits[place:] if place else (1, 2, 3, 1, *digits)) + (2,) * each.length
            request = Request(
                id=f"id{number}.{place}",
                prompt=prompt[: each.length],
                sampling=each.sampling,
                tenant=f"tenant{name}",
                session=f"session{name}",
                cache_salt=None if place % 2 else f"salt{name}",
                deadline=number + place / 4 + 1e6,
                priority=4 * number + place,
            )
            requests.append((each.arrives, request))
            if each.aborted is not None:
                aborts.append((each.aborted + turn % 2, request.id))  # it has waited, or not
        if asked in _USES[2:]:  # in turns each of three, early and late
            aborts.append((2 + 3 * turn, requests[turn][1].id))
        serve(engines[(turn + number) % len(engines)], Workload(tuple(requests), tuple(aborts)))
        if lasting is not None:
            go_on(lasting, number)

    return use


def go_on(engine: Engine, number: int) -> None:
    """Let two more requests of a number come to an engine that is never idle.

    One is of a tenant and session who always have others there; another is as no other one. As
    many as have come end, or are aborted.
    """
    for place, name in enumerate((" of all", str(number))):
        whose = Request(id=f"on{number}.{place}", prompt=(1 + number % 3, 2, number))
        named = replace(whose, tenant=name, session=name, cache_salt=name, priority=number)
        with suppress(RequestError):
            engine.add(replace(named, sampling=_greedy(6)))
    for step in range(MAX_IDLE_STEPS):
        if step >= 2 and len([*engine.groups]) <= 6:
            break
        engine.step()
    if number % 3 == 0:
        engine.abort(f"on{number - 1}.{number % 2}")


def what_waits(engine: Engine) -> str:
    """Say in a line which requests run, and which wait for how many blocks."""
    kv_cache, described = engine.kv_cache, []
    for group in engine.groups:
        lengths = "+".join(str(sequence.num_tokens) for sequence in group.live)
        held = kv_cache.distinct_blocks(group)
        if group.status is Status.WAITING:
            state = f"waits for {kv_cache.blocks_to_restore(group)} blocks"
        elif group.status is Status.SWAPPED:
            needed = held + kv_cache.blocks_to_grow(group)
            state = f"is swapped out and waits for {needed} blocks"
        else:
            state = f"runs in {held} blocks, {kv_cache.blocks_to_grow(group)} more for its next"
        described.append(f"{group.id} ({lengths} tokens) {state}")
    free = f"{kv_cache.num_free} of {kv_cache.num_blocks} blocks are free"
    if kv_cache.num_host_blocks:
        free += f", {kv_cache.num_free_host} of {kv_cache.num_host_blocks} on the host"
    return "; ".join([*described, free])


POLICY_SLOTS = ("block_allocator", "evictor", "queue_order", "scheduler", "victim", "preemption")
"""The slots of policies; a combination is valid, or refused when an engine is built from it."""


def engine_settings(
    registry: Registry,
    fixed: Mapping[str, ComponentSettings] | None = None,
    max_blocks: int = 24,
) -> st.SearchStrategy[dict[str, Any]]:
    """Settings for the ``memory`` executor, as keywords: any first-party policies, a small pool.

    Args:
        fixed: by slot, components that are not drawn; the options set on them are kept.
    """

    def drawn(draw: st.DrawFn) -> dict[str, Any]:
        tables: dict[str, Any] = {}
        ours = first_party(registry)
        for slot in POLICY_SLOTS:
            given = (fixed or {}).get(slot)
            if given is None:
                name = draw(st.sampled_from(sorted(ours.of(slot))))
                tables[slot] = draw(component_options(ours.get(slot, name).settings))
            else:
                set_fields = {name: getattr(given, name) for name in given.model_fields_set}
                tables[slot] = draw(component_options(type(given), set_fields))
        values = {
            **tables,
            "executor": "memory",
            "block_size": draw(st.sampled_from([1, 2, 3, 4, 8])),
            "num_blocks": draw(st.integers(6, max_blocks)),
            "num_host_blocks": draw(st.sampled_from([0, 4, 30])),
            "max_model_len": 64,
            "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        }
        try:
            build_memory_engine(registry, **values).close()
        except SettingsError:
            reject()  # the engine refuses this combination when it is built, with a reason
        return values

    return st.composite(drawn)()  # of no arguments, which would be shown: a registry is large
