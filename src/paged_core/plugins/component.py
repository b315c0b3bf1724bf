"""The records that plugins yield. They are cheap to make: what they name is imported on use."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict

from paged_core.errors import PluginError, error_text

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class ComponentSettings(BaseModel):
    """Options of one component, and the tag by which settings name it.

    A subclass is called ``<Name>Settings``, pins the tag with ``name: Literal["token_budget"] =
    "token_budget"``, and gives every option a default and a ``Field(description=...)``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str


class AutoSettings(ComponentSettings):
    """The name ``auto``: the component of the highest rank that can serve."""

    name: Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class Component:
    """One component for one slot; PluginError if it contradicts itself, which breaks the plugin."""

    slot: str
    """Settings key of the slot."""
    settings: type[ComponentSettings]
    factory: str
    """``"package.module:Class"``, imported when the component is chosen. It is called with the
    options, and with what else the slot's interface says."""
    rank: int | None = 0
    """``auto`` prefers higher ranks; ``None``: it never tries the component."""
    check: str | None = None
    """``"package.module:function"``: returns why the component cannot run on this machine or in
    this environment, or ``None``. It gets the options if it has a parameter. It builds nothing."""
    details: str | None = None
    """``"package.module:function"``: returns how it would run here, in a few words."""
    summary: str = ""
    interface_version: int = 1
    """The version of the slot's interface that the component was built for."""

    def __post_init__(self) -> None:
        if not (isinstance(self.settings, type) and issubclass(self.settings, ComponentSettings)):
            raise PluginError(f"settings of a component must be a class of options: {self!r}")
        tag = self.settings.model_fields["name"]
        if get_args(tag.annotation) != (tag.default,):
            raise PluginError(
                f"{self.settings.__name__} does not pin its name; write"
                ' `name: Literal["my_name"] = "my_name"`'
            )
        for path in filter(None, (self.factory, self.check, self.details)):
            if path.count(":") != 1:
                raise PluginError(f"{self.slot}.{self.name}: {path!r} is not 'package.module:name'")

    @property
    def name(self) -> str:
        """The name by which settings choose it."""
        return str(self.settings.model_fields["name"].default)

    def load(self) -> Any:
        """Import the factory and return it; PluginError, with the cause, if that fails."""
        return load(self.factory, f"{self.slot} {self.name!r}")

    def unavailable_reason(self, options: ComponentSettings | None = None) -> str | None:
        """Return why the component cannot run here, or ``None``; it is imported, not built.

        It never raises: a check that raises, exits or answers something else is a reason itself.

        Args:
            options: as it is chosen; ``None``: the defaults.
        """
        try:
            reason = self.ask_check(options)
            if reason is None:
                self.load()
        except PluginError as error:
            return str(error)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - one bad plugin must not take the others down
            return f"its check failed: {error_text(error)}"
        return reason

    def ask_check(self, options: ComponentSettings | None = None) -> str | None:
        """Return its check's reason or ``None``; what that raises is raised, and PluginError."""
        if self.check is None:
            return None
        check = load(self.check, f"check of {self.slot} {self.name!r}")
        given = (options or self.settings.model_validate({}),)
        reason: object = check(*given[: len(signature(check).parameters)])
        if reason is None or (isinstance(reason, str) and reason.strip()):
            return reason
        raise PluginError(f"{self.check!r} returned {reason!r}, and may return a reason or None")


@dataclass(frozen=True, slots=True)
class Slot:
    """A kind of component: its settings key, and the interface to implement."""

    key: str
    interface: str
    """``"package.module:Class"``."""
    default: str | tuple[str, ...] | None = None
    """The component or components if settings name none; ``None``: no component."""
    many: bool = False
    """True where the setting is a list of components."""
    version: int = 1
    """Version of the interface: raised when components must be adapted to a change."""
    summary: str = ""
    auto: bool = False
    """True where settings may name ``auto``, see :class:`AutoSettings`."""
    makeable: bool = True
    """False if its components need more than ``context.make`` gives them."""

    def __post_init__(self) -> None:
        if not self.key.isidentifier() or "__" in self.key or self.key != self.key.lower():
            raise PluginError(f"slot key {self.key!r} must be a lower-case name")
        if self.many != isinstance(self.default, tuple):
            raise PluginError(f"slot {self.key!r}: the default of a list of components is a tuple")

    @property
    def noun(self) -> str:
        """The word for one of its components in messages."""
        return self.key.removesuffix("s") if self.many else self.key


@dataclass(frozen=True, slots=True)
class Profile:
    """Named settings to start from: YAML with the keys of a settings file."""

    name: str
    source: str | Traversable
    """The YAML text, or a file (a ``Path`` or a package resource) that is read on use."""
    summary: str = ""

    def read(self) -> str:
        """Return the YAML."""
        return self.source if isinstance(self.source, str) else self.source.read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Command:
    """A command for ``paged-core``."""

    name: str
    app: str
    """``"package.module:name"`` of a function with typer's parameters, or of a ``typer.Typer``;
    imported when the command is used."""
    help: str
    """One line for the list of commands."""

    def load(self) -> Any:
        """Import the function or app and return it; PluginError, with the cause, if that fails."""
        return load(self.app, f"command {self.name!r}")


def load(path: str, what: str) -> Any:
    """Import ``"package.module:name"``; ``what`` names it in the PluginError if that fails."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:
        problem = error_text(error)
        raise PluginError(f"{what} cannot be imported from {path!r}: {problem}") from error
