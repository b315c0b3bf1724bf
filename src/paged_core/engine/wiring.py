"""From settings to an engine: the one place that knows which component gets what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from paged_core.checked.answers import check_capacity
from paged_core.checked.fault_names import FaultNames
from paged_core.engine.clock import SystemClock
from paged_core.engine.contexts import ExecutorContext, Maker, ObserverContext
from paged_core.engine.engine import Engine
from paged_core.engine.policies import Policies
from paged_core.errors import SettingsError
from paged_core.interfaces.executor import Executor, SupportsClock, SupportsText
from paged_core.interfaces.observer import Observer
from paged_core.interfaces.tokenizer import Tokenizer
from paged_core.plugins.making import blaming, make_component
from paged_core.plugins.registry import Registry
from paged_core.requests.lookup_oracle import LookupOracle
from paged_core.settings.schema import EngineSettings
from paged_core.text.front_end import FrontEnd, sampling_defaults


def build_engine(
    settings: EngineSettings,
    registry: Registry,
    *,
    clock: Callable[[], float] | None = None,
    observers: Sequence[Observer] = (),
    future: LookupOracle | None = None,
    after: Engine | None = None,
) -> Engine:
    """Build and start an engine.

    Args:
        clock: in seconds; ``None``: the executor's own, if it has one, or the time of this machine.
        observers: notified of every event, besides those that the settings name.
        future: what requests will ask the prefix cache for, which is known in a replay.
        after: an engine of equal settings that is used no more: its executor, which knows no
            sequence, is taken over as it is, warm.

    Raises:
        SettingsError: the settings contradict each other or what the machine offers.
        CheckpointError, UnsupportedModel: the model cannot be loaded.
        PluginError: a chosen component cannot be imported.
    """
    _check_is_one(settings)
    policies = Policies(settings, registry, future)
    context = ExecutorContext(
        settings=settings,
        registry=registry,
        needs_host_blocks=policies.make_preemption().may_swap,
        clock=clock,
        maker=Maker(settings, registry),
    )
    taken = after.executor if after else None
    executor: Executor = taken or make_component(registry, "executor", settings.executor, context)
    with ExitStack() as on_error:
        on_error.callback(executor.close)
        if clock is None:
            clock = executor.clock if isinstance(executor, SupportsClock) else SystemClock()
        with blaming(registry, "executor", settings.executor, "started"):
            capacity = after.capacity if after else executor.start()
        check_capacity(capacity)
        kv_cache = policies.make_kv_cache(capacity)
        num_blocks, maker = capacity.num_blocks, context.maker
        watching = ObserverContext(
            settings=settings, num_blocks=num_blocks, kv_cache=kv_cache, maker=maker
        )
        named = list[Observer](policies.observers)
        for one in settings.observers:
            named.append(make_component(registry, "observers", one, watching))
            on_error.callback(named[-1].close)
        mode = settings.async_scheduling
        engine = Engine(
            policies=policies,
            kv_cache=kv_cache,
            executor=executor,
            capacity=capacity,
            faults=FaultNames.of(settings),
            observers=[*observers, *named],
            clock=clock,
            async_scheduling=executor.runs_in_background if mode == "auto" else mode,
            recompute=not settings.kv_cache,
        )
        on_error.pop_all()
        return engine


def _check_is_one(settings: EngineSettings) -> None:
    """Refuse settings of several engines where one is built."""
    for slot, part in settings:
        if getattr(part, "num_engines", 1) > 1:
            raise SettingsError(
                f"{slot} asks for {part.num_engines} engines, and one is built here; ask for 1, or "
                "use AsyncLLM or `paged-core serve`, which run several"
            )


def make_front_end(settings: EngineSettings, executor: Executor, max_model_len: int) -> FrontEnd:
    """Return what makes requests for an engine.

    Args:
        executor: of the model that it serves; it need not have been started.
        max_model_len: as the started executor says.
    """
    tokenizer, defaults = executor_tokenizer(executor), sampling_defaults(executor)
    name = f"model {settings.model!r} on executor {settings.executor.name!r}"
    return FrontEnd(tokenizer, max_model_len=max_model_len, name=name, defaults=defaults)


def executor_tokenizer(executor: Executor) -> Tokenizer | None:
    """Return the tokenizer of the model that an executor runs, if it has one."""
    return executor.tokenizer() if isinstance(executor, SupportsText) else None
