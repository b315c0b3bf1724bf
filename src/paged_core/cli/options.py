"""Settings as options of a command.

A command is a function that typer understands, with a parameter of the type :class:`SettingsArgs`::

    def command(given: SettingsArgs, files: Annotated[list[Path], typer.Argument()]) -> int:
        settings = given.resolve().settings

In its place the frame puts ``--config``, ``--env-file``, ``--secrets-dir``, ``--block-plugin``,
``--log-level`` and one option for every setting, generated from what is installed. ``--help`` shows
the common ones, ``--help-settings`` all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from paged_core.cli.logs import configure_logs
from paged_core.plugins.component import Slot
from paged_core.plugins.registry import Registry
from paged_core.settings.layers import Entry, Layer, Origin, Text
from paged_core.settings.schema import EngineSettings, Resolved, choices, load_settings
from paged_core.settings.types import is_container, members

_NAMES = {int: "int", float: "float", bool: "bool", str: "text", NoneType: "null"}


def type_name(kind: Any) -> str:
    """Return a short name: ``int``, ``text or null``, ``auto, float32 or float16``."""
    names: list[str] = []
    for member in members(kind):
        if get_origin(member) is Literal:
            names += [str(value) for value in get_args(member)]
        else:
            names.append(_NAMES.get(member, "JSON"))
    *some, last = dict.fromkeys(names)
    return f"{', '.join(some)} or {last}" if some else last


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The option of every command that prints a table or JSON."""
PREFIX = "setting__"
COMMON = {"config", f"{PREFIX}profile", f"{PREFIX}model", "help_settings"}
"""Parameters about settings that `--help` shows."""


def is_setting(parameter: str) -> bool:
    """Return whether a parameter of a command is about settings, by its name."""
    return parameter.startswith(PREFIX) or parameter in _SETTINGS_FRAME


@dataclass(frozen=True)
class SettingsArgs:
    """The options about settings that a command was given; `resolve` reads files and checks."""

    registry: Registry
    environ: Mapping[str, str]
    config: Path | None = None
    options: Layer = ()
    env_file: Path | None = None
    secrets_dir: Path | None = None
    log_level: str | None = None
    """For processes that a command starts; this one's log is set up."""

    def resolve(self, below: Layer = (), /, **overrides: Any) -> Resolved:
        """Return the settings of all layers, with ``overrides`` above and ``below`` beneath them.

        Raises:
            SettingsError, PluginError: as :func:`~paged_core.settings.schema.load_settings` does.
        """
        return load_settings(
            self.registry,
            config=self.config,
            env_file=self.env_file,
            secrets_dir=self.secrets_dir,
            options=self.options,
            overrides=overrides,
            environ=self.environ,
            below=below,
        )


def expanded(
    function: Callable[..., Any], registry: Registry, environ: Mapping[str, str]
) -> Callable[..., Any]:
    """Return ``function`` with options in place of its parameter of type :class:`SettingsArgs`.

    A setting with the name of another parameter of the function gets no option; its own options do.
    """
    hints = get_type_hints(function, include_extras=True)
    place = next((name for name, hint in hints.items() if hint is SettingsArgs), None)
    if place is None:
        return function

    def command(
        *,
        config: Path | None,
        env_file: Path | None,
        secrets_dir: Path | None,
        block_plugin: list[str] | None,  # read before plugins were imported
        log_level: str | None,
        help_settings: bool,  # has ended the command, if it was given
        **values: Any,
    ) -> Any:
        configure_logs(log_level, environ)
        options = [
            Entry(path, Text(text), Origin("cli", flag(path)))
            for name, (path, _) in generated.items()
            if (text := values.pop(name)) is not None
        ]
        found = SettingsArgs(registry, environ, config, options, env_file, secrets_dir, log_level)
        return function(**{place: found}, **values)

    own = {
        name: hint for name, hint in hints.items() if hint is not SettingsArgs and name != "return"
    }
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    defaults["help_settings"] = False
    generated = {
        f"{PREFIX}{'__'.join(path)}": (path, option)
        for path, option in _setting_options(registry)
        if ".".join(path) not in own
    }
    hints = (
        own | _FRAME | {k: Annotated[str | None, option] for k, (_, option) in generated.items()}
    )
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=defaults.get(name)
            )
            for name, hint in hints.items()
        ]
    )
    command.__annotations__ = hints
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def _print_settings(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(ctx.command.settings_help(ctx))  # type: ignore[attr-defined]
        raise typer.Exit


def _file(name: str, metavar: str, text: str) -> Any:
    option = typer.Option(name, metavar=metavar, help=text, rich_help_panel="Settings")
    return Annotated[Path | None, option]


_SETTINGS_FRAME: dict[str, Any] = {
    "config": _file("--config", "FILE", "a settings file, YAML or TOML"),
    "env_file": _file("--env-file", "FILE", "a .env file with PAGED_CORE_ variables"),
    "secrets_dir": _file(
        "--secrets-dir", "DIR", "a directory with one file per PAGED_CORE_ variable"
    ),
    "help_settings": Annotated[
        bool,
        typer.Option(
            "--help-settings",
            help="show the options of all settings and exit",
            rich_help_panel="Settings",
            callback=_print_settings,
            is_eager=True,
        ),
    ],
}
_FRAME: dict[str, Any] = _SETTINGS_FRAME | {
    "block_plugin": Annotated[
        list[str] | None,
        typer.Option("--block-plugin", metavar="NAME", help="do not load a plugin; repeatable"),
    ],
    "log_level": Annotated[
        str | None,
        typer.Option(
            "--log-level", metavar="LEVEL", help="debug, info, warning (default) or error"
        ),
    ],
}


def _setting_options(registry: Registry) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, field in EngineSettings.model_fields.items():
        if not field.is_required():
            yield (key,), _option((key,), field.annotation, _help(field), "Settings")
    for slot in registry.slots.values():
        yield (slot.key,), _slot_option(slot, registry)
    for slot in registry.slots.values():
        if not slot.many:
            path = (slot.key, "name")
            yield path, typer.Option(flag(path), hidden=True)  # --scheduler says the same
            yield from _component_options(slot, registry)


def _slot_option(slot: Slot, registry: Registry) -> Any:
    names = ", ".join(choices(registry, slot))
    chosen = ", ".join(slot.default) if isinstance(slot.default, tuple) else slot.default
    text = f"{slot.summary}: {names} (default: {chosen or 'none'})"
    metavar = "JSON" if slot.many else "NAME"
    return typer.Option(flag((slot.key,)), metavar=metavar, help=text, rich_help_panel="Components")


def _component_options(slot: Slot, registry: Registry) -> Iterator[tuple[tuple[str, ...], Any]]:
    """One option per name, though components may share it: each with its own default."""
    owners: dict[str, dict[str, FieldInfo]] = {}
    for name, options in choices(registry, slot).items():
        for option, field in options.model_fields.items():
            if option != "name":
                owners.setdefault(option, {})[name] = field
    for option, fields in owners.items():
        kind, path = next(iter(fields.values())).annotation, (slot.key, option)
        text = next((f.description for f in fields.values() if f.description), "")
        of = "; ".join(f"{name}: {_default(field)}" for name, field in fields.items())
        yield path, _option(path, kind, f"{text} ({of})".strip(), f"Options of {slot.key}")


def _option(path: tuple[str, ...], kind: Any, text: str, panel: str) -> Any:
    return typer.Option(flag(path), metavar=_metavar(kind), help=text, rich_help_panel=panel)


def flag(path: tuple[str, ...]) -> str:
    """Return the option that sets a setting."""
    return f"--{'.'.join(path)}".replace("_", "-")


def _metavar(kind: Any) -> str:
    """Name the types that a value may have; the frame knows a flag by ``BOOL``."""
    names = []
    for member in members(kind):
        if get_origin(member) is Literal:
            names += [str(value) for value in get_args(member)]
        elif member is not NoneType:
            names.append("JSON" if is_container(member) else type_name(member).upper())
    return "|".join(dict.fromkeys(names))


def _help(field: FieldInfo) -> str:
    return f"{field.description} (default: {_default(field)})"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
