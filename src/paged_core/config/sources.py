"""Reads settings where they are written, through the sources of pydantic-settings.

Each function returns what one place says and leaves text as it is. It raises ``SettingsError`` with
the line or the variable that is wrong, and ``OSError`` or ``ValueError`` where nothing can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NestedSecretsSettingsSource,
    SecretsSettingsSource,
    TomlConfigSettingsSource,
    YamlConfigSettingsSource,
)

from paged_core.config.entry import Entry, Layer, Origin, Text
from paged_core.config.suggest import did_you_mean, spelled_here
from paged_core.config.variables import PREFIX, RESERVED
from paged_core.errors import SettingsError


def from_environment(environ: Mapping[str, str], keys: Collection[str]) -> Layer:
    """Return what variables such as ``PAGED_CORE_SCHEDULER__MAX_NUM_SEQS`` say; empty is unset."""
    return _variables(environ, {name: Origin("env", name) for name in environ}, keys)


def from_env_file(path: Path, keys: Collection[str]) -> Layer:
    """Return what the variables in a ``.env`` file say; those without the prefix are ignored."""
    content = path.read_text("utf-8")
    origins = {}
    for name, value, (text, line), broken in parse_stream(StringIO(content)):
        line += text[: len(text) - len(text.lstrip())].count("\n")  # it begins with blank lines
        origins[name or ""] = origin = Origin("env", str(path), line)
        if broken or (name and name.startswith(PREFIX) and value is None):
            raise SettingsError(f"{origin}: write NAME=value, with closed quotes")
    return _variables(dotenv_values(stream=StringIO(content)), origins, keys)


def from_secrets_dir(folder: Path, keys: Collection[str]) -> Layer:
    """Return what the files of a directory say; each has the name of a variable, in any case."""
    next(folder.iterdir(), None)  # raises where the source would find no files
    secrets = SecretsSettingsSource(BaseSettings, folder)
    files = NestedSecretsSettingsSource(secrets, secrets_case_sensitive=True).env_vars
    origins = {name.upper(): Origin("env", str(folder / name)) for name in files}
    return _variables({name.upper(): text for name, text in files.items()}, origins, keys)


def _variables(
    texts: Mapping[str, str | None], origins: Mapping[str, Origin], keys: Collection[str]
) -> Layer:
    names = {name.lower(): name for name, text in texts.items() if text and name.startswith(PREFIX)}
    for name in names.values():
        key = name.removeprefix(PREFIX).lower()
        file = "" if origins[name].where == name else origins[name].suffix
        if key in RESERVED and file:
            raise SettingsError(f"{name} is read from the environment only; set it there{file}")
        if key not in RESERVED and key.partition("__")[0] not in keys:
            known = [PREFIX + key.upper() for key in (*keys, *RESERVED)]
            near = spelled_here(
                key, lambda key: PREFIX + key.upper().replace(".", "__")
            ) or did_you_mean(name, known)
            raise SettingsError(f"{name} sets nothing{near}{file}")
    source = EnvSettingsSource(
        BaseSettings,
        case_sensitive=True,
        env_prefix=PREFIX.lower(),
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
        Entry(path, Text(text), origins[names[PREFIX.lower() + "__".join(path)]])
        for path, text in found.items()
        if text is not None
    ]


def from_file(path: Path) -> Layer:
    """Return what a settings file says: TOML if its name ends so, or else YAML."""
    content, origin = path.read_text("utf-8"), Origin("yaml", str(path))
    if path.suffix.lower() != ".toml":
        return from_yaml(content, origin)
    return list(_entries(TomlConfigSettingsSource(BaseSettings, _file(content))(), origin, {}))


def from_yaml(content: str, origin: Origin) -> Layer:
    """Return what YAML says, each value with the line of its key."""
    try:
        lines = _lines(content, origin)
        values = YamlConfigSettingsSource(BaseSettings, _file(content))()
        return list(_entries(values, origin, lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        where = replace(origin, line=mark.line + 1) if mark else origin
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SettingsError(f"{where}: not valid YAML: {problem}") from None


def _file(content: str) -> Any:
    """Return text as a file: a pipe can be read only once, and a profile may not be a file."""
    return SimpleNamespace(is_file=lambda: True, open=lambda *_, **__: BytesIO(content.encode()))


def _entries(
    values: Mapping[str, Any], origin: Origin, lines: Mapping[tuple[str, ...], int]
) -> Iterator[Entry]:
    """Yield an entry for every value, and for every option of a table."""
    for key, value in values.items():
        table = value if isinstance(value, Mapping) and value else {None: value}
        for option, own in table.items():
            path = (key,) if option is None else (key, option)
            yield Entry(path, own, replace(origin, line=lines.get(path)))


def _lines(content: str, origin: Origin) -> dict[tuple[str, ...], int]:
    """Return the line of every key, and of every option of a table, of a YAML mapping."""
    lines: dict[tuple[str, ...], int] = {}
    root = yaml.compose(content, yaml.SafeLoader)
    if root and not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{origin}, line 1: settings must be a mapping of keys to values")
    tables: list[tuple[tuple[str, ...], Any]] = [((), root)] if root else []
    for above, table in tables:
        yaml.SafeLoader("").flatten_mapping(table)
        for key, value in table.value:
            path, line = (*above, str(key.value)), key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:str":
                raise SettingsError(f"{origin}, line {line}: the key is not text; quote it")
            if path in lines:
                raise SettingsError(f"{origin}, line {line}: the key {path[-1]!r} is given twice")
            lines[path] = line
            if not above and isinstance(value, yaml.MappingNode):
                tables.append((path, value))
    return lines
