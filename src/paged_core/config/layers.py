"""Settings before they are checked: what each layer says, where it says so, and which one wins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paged_core.component import ComponentSettings, Slot
from paged_core.config.suggest import did_you_mean
from paged_core.errors import SettingsError

PREFIX = "PAGED_CORE_"
RESERVED = frozenset({"config", "profile", "block_plugin", "cache_dir", "log_level"})
"""Environment variables with the prefix that are no settings, or are read before the others."""


class Text(str):
    """A value as a person typed it, in the environment or on the command line: of no type yet."""

    __slots__ = ()

    @property
    def is_null(self) -> bool:
        """Whether it stands for ``None`` where that is allowed."""
        return self.lower() in {"null", "none"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from."""

    layer: Literal["cli", "env", "yaml", "profile", "default", "python"]
    origin: str
    """The option, the variable, the file, the profile, or whose default it is."""
    line: int | None = None

    def __str__(self) -> str:
        where = f"profile {self.origin!r}" if self.layer == "profile" else self.origin
        return where if self.line is None else f"{where}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One value: ``("num_blocks",)`` or, of a component's table, ``("scheduler", "name")``."""

    path: tuple[str, ...]
    value: Any
    source: Source

    @property
    def key(self) -> str:
        """The path as people write it."""
        return ".".join(self.path)


Layer = Sequence[Entry]


def from_keywords(values: Mapping[str, Any]) -> Layer:
    """Return what the keywords of a call say."""
    source = Source("python", "")
    return [Entry((key,), value, source) for key, value in values.items()]


def from_environment(environ: Mapping[str, str], keys: Iterable[str]) -> Layer:
    """Return what variables such as ``PAGED_CORE_SCHEDULER__MAX_NUM_SEQS`` say.

    An empty variable counts as unset.

    Raises:
        SettingsError: a variable with the prefix is no setting; ``keys`` are the settings.
    """
    known = {*keys, *RESERVED}
    layer = []
    for name, value in environ.items():
        if not name.startswith(PREFIX) or not value:
            continue
        path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if path[0] not in known or (path[0] in RESERVED and len(path) > 1):
            names = [PREFIX + key.upper() for key in known]
            raise SettingsError(f"{name} sets nothing{did_you_mean(name, names)}")
        if path[0] == "profile" or path[0] not in RESERVED:
            layer.append(Entry(path, Text(value), Source("env", name)))
    return layer


def blocked_plugins(environ: Mapping[str, str]) -> list[str]:
    """Return the plugins that ``PAGED_CORE_BLOCK_PLUGIN`` names, separated by commas."""
    names = environ.get(f"{PREFIX}BLOCK_PLUGIN", "").split(",")
    return [name.strip() for name in names if name.strip()]


def from_file(path: Path, named_by: str) -> Layer:
    """Return what a settings file says; ``named_by`` is what asked for the file.

    Raises:
        SettingsError: it cannot be read, or is not a YAML mapping.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingsError(f"cannot read settings file {path}: {reason} ({named_by})") from None
    return from_yaml(text, Source("yaml", str(path)))


def from_yaml(text: str, source: Source) -> Layer:
    """Return what YAML says, each value with the line of its key.

    Raises:
        SettingsError: it is not YAML, not a mapping, or has a key twice; the message has the line.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise SettingsError(f"{source}, line 1: settings must be a mapping of keys to values")
        return list(_yaml_entries((), root, loader, source))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = replace(source, line=mark.line + 1) if mark else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SettingsError(f"{where}: not valid YAML: {problem}") from None
    finally:
        loader.dispose()


def _yaml_entries(
    above: tuple[str, ...], node: Any, loader: Any, source: Source
) -> Iterator[Entry]:
    import yaml

    loader.flatten_mapping(node)
    seen: set[str] = set()
    for key_node, value_node in node.value:
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        here = replace(source, line=line)
        if not isinstance(key, str):
            raise SettingsError(f"{here}: the key {key!r} is not a name; quote it if it is meant")
        if key in seen:
            raise SettingsError(f"{here}: the key {key!r} is given twice")
        seen.add(key)
        path = (*above, key)
        if not above and isinstance(value_node, yaml.MappingNode) and value_node.value:
            yield from _yaml_entries(path, value_node, loader, source)
        else:
            yield Entry(path, loader.construct_object(value_node, deep=True), here)


def merge(layers: Iterable[Layer], slots: Mapping[str, Slot]) -> dict[tuple[str, ...], Entry]:
    """Return the value that wins for every path; ``layers`` come lowest first.

    A component's table is merged option by option, until a layer names another component: then
    nothing of what lies below is kept.

    Raises:
        SettingsError: a layer says two things about one setting.
    """
    merged: dict[tuple[str, ...], Entry] = {}
    for layer in layers:
        own = _spread(layer, slots)
        for key in {path[0] for path in own}:
            below = [path for path in merged if path[0] == key]
            if _replaces(key, own, merged, slots):
                for path in below:
                    del merged[path]
        merged.update(own)
    return merged


def _replaces(
    key: str,
    own: Mapping[tuple[str, ...], Entry],
    merged: Mapping[tuple[str, ...], Entry],
    slots: Mapping[str, Slot],
) -> bool:
    whole, name = (key,), (key, "name")
    if whole in own or whole in merged:
        return True
    if name not in own or key not in slots:
        return False
    below = merged[name].value if name in merged else slots[key].default
    return bool(own[name].value != below)


def _spread(layer: Layer, slots: Mapping[str, Slot]) -> dict[tuple[str, ...], Entry]:
    """Write every component's table as one entry per option, shorthand as an entry for its name."""
    found: dict[tuple[str, ...], Entry] = {}
    for entry in layer:
        slot = slots.get(entry.path[0])
        whole = slot is not None and not slot.many and len(entry.path) == 1
        for one in _table(entry) if whole else (entry,):
            other = found.setdefault(one.path, one)
            if other.value != one.value:
                raise SettingsError(
                    f"{one.key}: {other.source} says {other.value!r},"
                    f" {one.source} says {one.value!r}; keep one of them"
                )
    return found


def _table(entry: Entry) -> Iterator[Entry]:
    value = entry.value
    if isinstance(value, Text):
        value = from_json(entry) if value.startswith("{") else None if value.is_null else value
    if isinstance(value, str):
        yield Entry((*entry.path, "name"), str(value), entry.source)
    elif isinstance(value, (Mapping, ComponentSettings)) and dict(value):
        for option, own in dict(value).items():
            yield Entry((*entry.path, str(option)), own, entry.source)
    else:
        yield replace(entry, value=value)


def from_json(entry: Entry) -> Any:
    """Return the list or table that was typed.

    Raises:
        SettingsError: it is not JSON.
    """
    try:
        return json.loads(entry.value)
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{entry.key}: not valid JSON: {error}, in {str(entry.value)!r} ({entry.source})"
        ) from None
