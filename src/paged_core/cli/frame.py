"""The list of commands, each loaded when it is used, and the options that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from paged_core._version import __version__
from paged_core.errors import did_you_mean
from paged_core.plugins.registry import Registry
from paged_core.settings.environment import blocked_plugins


@dataclass(frozen=True)
class Session:
    """One call of ``paged-core``."""

    environ: Mapping[str, str]
    blocked: tuple[str, ...] = ()

    @classmethod
    def of(cls, args: Sequence[str], environ: Mapping[str, str]) -> Session:
        """Look for ``--block-plugin`` first: it decides which commands and options there are."""
        blocked = blocked_plugins(environ)
        words = iter(args)
        for word in words:
            option, equals, value = word.partition("=")
            if word == "--":
                break
            if dashed(option) == "--block-plugin" and (
                name := value if equals else next(words, "")
            ):
                blocked.append(name)
        return cls(environ, tuple(blocked))

    @cached_property
    def registry(self) -> Registry:
        """The registry of the installed plugins, less those that are blocked."""
        return Registry.discover(block=self.blocked)

    def load(self, name: str) -> TyperCommand | TyperGroup:
        """Import a command, and give its functions the settings as options.

        Raises:
            PluginError: there is no such command, two plugins bring it, or it cannot be imported.
        """
        commands = self.registry.commands
        if name not in commands:
            known = did_you_mean(name, commands)
            raise self.registry.error(f"no command is called {name!r}{known}")
        self.registry.refuse_conflict(f"command {name!r}")
        command = commands[name]
        found = command.load()
        if isinstance(found, typer.Typer):
            loaded = get_command(self._with_settings(found))
        else:
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(name, cls=SettingsCommand)(self._expanded(found))
            loaded = get_command(app)
        loaded.name = name
        loaded.help = loaded.help or command.help
        return loaded  # type: ignore[return-value]

    def _with_settings(self, app: typer.Typer) -> typer.Typer:
        """Return a copy of an app whose commands take settings: the app itself is shared."""
        made = copy(app)
        made._add_completion = False
        made.registered_commands = [copy(info) for info in app.registered_commands]
        for info in made.registered_commands:
            if info.callback:
                info.callback = self._expanded(info.callback)
            if info.cls is None or info.cls is TyperCommand:
                info.cls = SettingsCommand
        made.registered_groups = [copy(info) for info in app.registered_groups]
        for group in made.registered_groups:
            if group.typer_instance:
                group.typer_instance = self._with_settings(group.typer_instance)
        return made

    def _expanded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        from paged_core.cli.options import expanded

        return expanded(function, self.registry, self.environ)


class SettingsCommand(TyperCommand):
    """A command with settings among its options; their values are text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``--deterministic`` alone mean ``--deterministic true``, and consume no prompt."""
        flags = {
            option
            for param in self.params
            if getattr(param, "metavar", None) == "BOOL"
            for option in param.opts
        }
        return super().parse_args(ctx, list(_spelled_out(args, flags)))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write one screen: of the settings only those that are common."""
        from paged_core.cli.options import COMMON, is_setting

        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        sections: _Sections = {"Arguments": [], "Options": [], "Settings": []}
        for param in self.get_params(ctx):
            name = str(param.name)
            if not is_setting(name):
                argument = param.param_type_name == "argument"
                sections["Arguments" if argument else "Options"].append(param)
            elif name in COMMON:
                sections["Settings"].append(param)
        _write_sections(ctx, formatter, sections)

    def settings_help(self, ctx: Any) -> str:
        """Return the options of all settings, by section."""
        from paged_core.cli.options import is_setting

        formatter, sections = ctx.make_formatter(), _Sections()
        for param in self.get_params(ctx):
            if is_setting(str(param.name)):
                panel = getattr(param, "rich_help_panel", None) or "Settings"
                sections.setdefault(panel, []).append(param)
        _write_sections(ctx, formatter, sections)
        return str(formatter.getvalue()).strip("\n")


_Sections = dict[str, list[Any]]
"""Parameters of a command, under the headings of its help."""


def _write_sections(ctx: Any, formatter: Any, sections: _Sections) -> None:
    for title, params in sections.items():
        if lines := [line for param in params if (line := param.get_help_record(ctx))]:
            with formatter.section(title):
                formatter.write_dl(lines)


class Root(TyperGroup):
    """Lists commands from their records, and imports one when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(ctx.obj.registry.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a placeholder with the line of help, for the list of commands."""
        command = ctx.obj.registry.commands.get(cmd_name)
        return TyperCommand(cmd_name, help=command.help) if command else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str, Any, list[str]]:
        name = args[0].replace("_", "-")
        return name, ctx.obj.load(name), args[1:]


def root() -> TyperGroup:
    """Return the command line's top: the commands, ``--version`` and ``--help``."""
    app = typer.Typer(
        cls=Root,
        add_completion=False,
        rich_markup_mode=None,  # a third of the time to print the help goes to drawing boxes
        context_settings={
            "token_normalize_func": lambda token: token.replace("_", "-"),
            "help_option_names": ["-h", "--help"],
        },
    )
    app.callback()(_root)
    return get_command(app)  # type: ignore[return-value]


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    block_plugin: Annotated[  # read before plugins were imported; commands take it, too
        list[str] | None,
        typer.Option("--block-plugin", metavar="NAME", help="Do not load a plugin; repeatable."),
    ] = None,
) -> None:
    """An LLM inference engine made of swappable parts.

    Every command takes every setting as an option: see `paged-core config --help-settings`.
    """


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paged-core {__version__}")
        raise typer.Exit


_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off"})
"""Words after a flag that are its value, and not the next argument."""


def _spelled_out(args: Sequence[str], flags: Collection[str]) -> Iterator[str]:
    for place, word in enumerate(args):
        if word == "--":
            yield from args[place:]
            return
        following = args[place + 1].lower() if place + 1 < len(args) else ""
        alone = dashed(word) in flags and following not in _BOOLEANS
        yield f"{word}=true" if alone else word


def dashed(option: str) -> str:
    """Return an option's name in its canonical spelling."""
    return option.replace("_", "-")
