"""Former names of modules and classes: importing one works, with a warning that has the new one."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED = {
    "beam_search": "requests.beams",
    "beam_search_params": "sampling_params",
    "beams": "requests.beams",
    "best_of": "requests.beams",
    "block_key": "ids",
    "cache_changes": "cache.changes",
    "cache_dir": "settings.environment",
    "checked_victim": "checked.answers",
    "clock": "engine.clock",
    "component": "plugins.component",
    "config": "settings",
    "config.cache_dir": "settings.environment",
    "config.documents": "settings.documents",
    "config.entry": "settings.layers",
    "config.errors": "settings.errors",
    "config.field_types": "settings.types",
    "config.memory_size": "settings.types",
    "config.merge": "settings.layers",
    "config.sources": "settings.sources",
    "config.suggest": "settings.errors",
    "config.values": "settings.values",
    "config.variables": "settings.environment",
    "engine_driver": "engine.driver",
    "field_types": "settings.types",
    "front_door": "requests.checks",
    "future": "cache.lookup_oracle",
    "generation": "text.generation",
    "hookspecs": "plugins.hooks",
    "interfaces.component_factory": "engine.contexts",
    "interfaces.future": "cache.lookup_oracle",
    "interfaces.model_size": "interfaces.layer",
    "interfaces.service": "engine.policies",
    "kv_cache": "cache.kv_cache",
    "layer": "interfaces.layer",
    "memory_size": "settings.types",
    "metrics": "engine.outcome",
    "model_size": "interfaces.layer",
    "output_text": "text.generation",
    "outputs": "text.outputs",
    "pins": "requests.pins",
    "planned_step": "engine.outcome",
    "policies": "engine.policies",
    "preemptor": "engine.preemptor",
    "prefix_publishing": "cache.prefix_cache",
    "prompts": "text.prompts",
    "registry": "plugins.registry",
    "requests.beam_search": "requests.beams",
    "requests.best_of": "requests.beams",
    "requests.live_requests": "engine.live_requests",
    "service": "engine.policies",
    "settings_errors": "settings.errors",
    "slots": "plugin",
    "step_outcome": "engine.outcome",
    "step_recorder": "engine.recorder",
    "suggest": "settings.errors",
    "text.logprobs": "text.outputs",
    "text.output_text": "text.generation",
    "waiting_queue": "engine.waiting_queue",
    "wiring": "engine.wiring",
}
"""Module by its former name; both within ``paged_core``."""
RENAMED = {
    f"interfaces.{module}": {f"{name}Parts": ("engine.contexts", f"{name}Context")}
    for module, name in {
        "allocator": "Allocator",
        "attention": "Attention",
        "evictor": "Evictor",
        "executor": "Executor",
        "observer": "Observer",
        "preemption": "Preemption",
        "queue_order": "Order",
        "runner": "Runner",
        "scheduler": "Scheduler",
        "victim": "Victim",
    }.items()
}
"""By module, the former name of a class: the module that has it now, and its name there."""
_PACKAGE = __package__


class _Moved:
    """Finds a module by its former name, and imports it by the one that it has."""

    def find_spec(self, name: str, path: object, target: object = None, /) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package == _PACKAGE and rest in RENAMED:
            return self._with_former_names(name, path, RENAMED[rest])
        if package != _PACKAGE or rest not in MOVED:
            return None
        # its type is taken from a spec: nothing is imported, because every command waits for it
        return type(__spec__)(name, self)  # type: ignore[arg-type]

    def _with_former_names(
        self, name: str, path: object, renamed: dict[str, tuple[str, str]]
    ) -> ModuleSpec | None:
        """Find a module as ever, which also answers to former names once it is executed."""
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (finder.find_spec(name, path) for finder in others)), None)  # type: ignore[arg-type]
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def find(attribute: str) -> object:
            if attribute not in renamed:
                raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
            module, new = renamed[attribute]
            home = f"{_PACKAGE}.{module}"
            _warn(f"{name}.{attribute} is now {home}.{new}")
            return getattr(_import(home), new)

        def execute_and_add(module: ModuleType) -> None:
            execute(module)
            module.__getattr__ = find  # type: ignore[method-assign]

        spec.loader.exec_module = execute_and_add  # type: ignore[method-assign]
        return spec

    def create_module(self, spec: ModuleSpec, /) -> ModuleType:
        new = f"{_PACKAGE}.{MOVED[spec.name.partition('.')[2]]}"
        _warn(f"{spec.name} is now {new}")
        module = _import(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType, /) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # it is loaded, under its own name


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, DeprecationWarning, stacklevel=3)


def _import(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(name)


def install() -> None:
    """Let former names be imported."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())  # before `config.errors` is found in `settings`
