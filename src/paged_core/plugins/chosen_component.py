"""A component that is an option of another one, such as the parts of attention ``hybrid``."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from paged_core.errors import SettingsError, did_you_mean
from paged_core.plugins.component import ComponentSettings
from paged_core.plugins.registry import Registry


class ChosenComponent(BaseModel):
    """A component by its name, or by a table of its name and options, which are checked when it is
    made."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    def __str__(self) -> str:
        return self.name if not self.model_extra else self.model_dump_json()

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    def options(
        self, slot: str, key: str, registry: Registry, *, refused: Collection[str]
    ) -> ComponentSettings:
        """Return the checked options.

        Args:
            key: the option of a component of ``slot`` that this is.
            refused: names that it may not have.

        Raises:
            SettingsError: there is no such component, it is one of ``refused``, or an option is
                wrong.
        """
        found = registry.of(slot)
        if self.name in refused:
            raise SettingsError(
                f"{slot}.{key}: a part cannot be {self.name!r}; name one of "
                f"{', '.join(sorted(set(found) - set(refused)))}"
            )
        if self.name not in found:
            known = did_you_mean(self.name, found)
            raise SettingsError(f"{slot}.{key}: no {slot} is called {self.name!r}{known}")
        try:
            return found[self.name].settings.model_validate(self.model_dump())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join((slot, key, *map(str, first["loc"])))
            if first["type"] == "extra_forbidden":
                raise SettingsError(f"{where}: {self.name!r} has no such option") from None
            raise SettingsError(f"{where}: {first['msg']}, not {first['input']!r:.200}") from None
