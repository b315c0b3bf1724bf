"""Reads settings where they are written.

Each function returns what one place says and leaves text as it is. It raises ``SettingsError`` with
the line or the variable that is wrong, and ``OSError`` or ``ValueError`` where nothing can be read.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from dotenv.parser import parse_stream
from dotenv.variables import parse_variables
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from paged_core.errors import SettingsError, did_you_mean
from paged_core.settings.documents import MAX_SIZE, DocumentError, parse_toml, parse_yaml, read_text
from paged_core.settings.environment import OTHERS, PREFIX, RESERVED
from paged_core.settings.errors import spelled_here
from paged_core.settings.layers import Entry, Layer, Origin, Text


def from_environment(
    environ: Mapping[str, str], keys: Collection[str], prefix: str = PREFIX
) -> Layer:
    """Return what variables such as ``PAGED_CORE_SCHEDULER__MAX_NUM_SEQS`` say; empty is unset."""
    return _variables(environ, {name: Origin("env", name) for name in environ}, keys, prefix)


def from_env_file(path: Path, keys: Collection[str]) -> Layer:
    """Return what the variables in a ``.env`` file say; those without the prefix are ignored."""
    origins: dict[str, Origin] = {}
    texts: dict[str, str | None] = {}
    known: ChainMap[str, str | None] = ChainMap(texts, {**os.environ})
    for name, value, (text, line), broken in parse_stream(StringIO(read_text(path))):
        line += text[: len(text) - len(text.lstrip())].count("\n")  # it begins with blank lines
        origins[name or ""] = origin = Origin("env", str(path), line)
        if broken or (name and name.startswith(PREFIX) and value is None):
            raise SettingsError(f"{origin}: write NAME=value, with closed quotes")
        if name and value is not None:  # as dotenv_values does, which has no bound
            parts = [part.resolve(known) for part in parse_variables(value)]
            if sum(map(len, parts)) > MAX_SIZE // 16:
                raise SettingsError(f"{origin}: longer than {MAX_SIZE // 16:,} characters")
            texts[name] = "".join(parts)
    return _variables(texts, origins, keys)


def from_secrets_dir(folder: Path, keys: Collection[str]) -> Layer:
    """Return what the files of a directory say; each has the name of a variable, in any case."""
    origins: dict[str, Origin] = {}
    texts: dict[str, str | None] = {}
    for path in sorted(folder.iterdir()):
        name = path.name.upper()
        if not name.startswith(PREFIX) or not path.is_file():
            continue
        origin = Origin("env", str(path))
        if name in origins:
            raise SettingsError(f"{origins[name]} and {origin} give one setting; remove one")
        try:
            origins[name], texts[name] = origin, read_text(path).strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"cannot read {path}: {reason}") from None
    return _variables(texts, origins, keys)


def _variables(
    texts: Mapping[str, str | None],
    origins: Mapping[str, Origin],
    keys: Collection[str],
    prefix: str = PREFIX,
) -> Layer:
    names: dict[str, str] = {}
    reserved = RESERVED if prefix == PREFIX else frozenset[str]()
    for name in texts:
        key = name.upper().removeprefix(prefix).lower()
        if not texts[name] or len(key) == len(name):
            continue
        if prefix == PREFIX and name.startswith(OTHERS):
            continue
        file = "" if origins[name].where == name else origins[name].suffix
        if name != name.upper():
            raise SettingsError(f"{name} sets nothing; write {name.upper()}{file}")
        if key in reserved and file:
            raise SettingsError(f"{name} is read from the environment only; set it there{file}")
        if key not in reserved and key.partition("__")[0] not in keys:
            known = [prefix + key.upper() for key in (*keys, *reserved)]
            near = spelled_here(
                key, lambda key: prefix + key.upper().replace(".", "__")
            ) or did_you_mean(name, known)
            raise SettingsError(f"{name} sets nothing{near}{file}")
        names[name.lower()] = name
    source = EnvSettingsSource(
        BaseSettings,
        case_sensitive=True,
        env_prefix=prefix.lower(),
        env_nested_delimiter="__",
        env_nested_max_split=1,
    )
    source.env_vars = {lowered: texts[name] for lowered, name in names.items()}
    found: dict[tuple[str, ...], str | None] = {}
    kind = FieldInfo(annotation=Any)
    for key in keys:  # calling the source loses a component's name if options are given beside it
        found[key,] = source.get_field_value(kind, key)[0]
        options = source.explode_env_vars(key, kind, source.env_vars)
        found |= {(key, option): text for option, text in options.items()}
    return [
        Entry(path, Text(text), origins[names[prefix.lower() + "__".join(path)]])
        for path, text in found.items()
        if text is not None
    ]


def from_file(path: Path) -> Layer:
    """Return what a settings file says: TOML if its name ends so, or else YAML."""
    content, origin = read_text(path), Origin("yaml", str(path))
    if path.suffix.lower() != ".toml":
        return from_yaml(content, origin)
    return list(entries(parse_toml(content), origin, lambda _: None))


def from_yaml(content: str, origin: Origin) -> Layer:
    """Return what YAML says, each value with the line of its key."""
    try:
        values, root = parse_yaml(content)
        return list(entries(values, origin, _lines(root).get)) if root else []
    except DocumentError as error:
        raise SettingsError(f"{replace(origin, line=error.line)}: {error}") from None


def entries(
    values: Mapping[str, Any], origin: Origin, line: Callable[[tuple[str, ...]], int | None]
) -> Iterator[Entry]:
    """Yield an entry for every value, and for every option of a table, with its line."""
    for key, value in values.items():
        has_options = isinstance(value, Mapping) and all(isinstance(each, str) for each in value)
        table = value if has_options and value else {None: value}
        for option, own in table.items():
            path = (key,) if option is None else (key, option)
            yield Entry(path, own, replace(origin, line=line(path)))


def _lines(root: yaml.Node) -> dict[tuple[str, ...], int]:
    """Return the line of every key, and of every option of a table, of a YAML mapping."""
    lines: dict[tuple[str, ...], int] = {}
    if not isinstance(root, yaml.MappingNode):
        raise DocumentError("settings must be a mapping of keys to values", 1)
    tables: list[tuple[tuple[str, ...], Any]] = [((), root)]
    for above, table in tables:
        for key, value in table.value:
            path, line = (*above, str(key.value)), key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:str":
                raise DocumentError("the key is not text; quote it", line)
            lines[path] = line
            if not above and isinstance(value, yaml.MappingNode):
                tables.append((path, value))
    return lines
