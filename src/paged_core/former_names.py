"""Former names of modules and classes: importing one works, with a warning that has the new one."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FORMER = {
    "cache.changes": "cache_changes",
    "cache.kv_cache": "kv_cache",
    "cache.lookup_oracle": "future interfaces.future",
    "cache.prefix_cache": "prefix_publishing",
    "checked.answers": "checked_victim",
    "engine.clock": "clock",
    "engine.contexts": "interfaces.component_factory",
    "engine.driver": "engine_driver",
    "engine.live_requests": "requests.live_requests",
    "engine.outcome": "metrics planned_step step_outcome",
    "engine.policies": "interfaces.service policies service",
    "engine.preemptor": "preemptor",
    "engine.recorder": "step_recorder",
    "engine.waiting_queue": "waiting_queue",
    "engine.wiring": "wiring",
    "ids": "block_key",
    "interfaces.layer": "interfaces.model_size layer model_size",
    "plugin": "slots",
    "plugins.component": "component",
    "plugins.hooks": "hookspecs",
    "plugins.registry": "registry",
    "requests.beams": "beam_search beams best_of requests.beam_search requests.best_of",
    "requests.checks": "front_door",
    "requests.pins": "pins",
    "sampling_params": "beam_search_params",
    "settings": "config",
    "settings.documents": "config.documents",
    "settings.environment": "cache_dir config.cache_dir config.variables",
    "settings.errors": "config.errors config.suggest settings_errors suggest",
    "settings.layers": "config.entry config.merge",
    "settings.sources": "config.sources",
    "settings.types": "config.field_types config.memory_size field_types memory_size",
    "settings.values": "config.values",
    "text.generation": "generation output_text text.output_text",
    "text.outputs": "outputs text.logprobs",
    "text.prompts": "prompts",
}
MOVED = {former: new for new, names in _FORMER.items() for former in names.split()}
"""Module by its former name; both within ``paged_core``."""
_SLOTS = (
    "allocator attention evictor executor observer preemption queue_order runner scheduler victim"
)
RENAMED = {
    f"interfaces.{slot}": {f"{name}Parts": ("engine.contexts", f"{name}Context")}
    for slot in _SLOTS.split()
    for name in ["Order" if slot == "queue_order" else slot.title()]
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
