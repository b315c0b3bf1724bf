"""``paged-core schema``: what a settings file may contain."""

from __future__ import annotations

from paged_core.cli.options import SettingsArgs
from paged_core.cli.output import print_json
from paged_core.settings.schema import settings_class


def command(given: SettingsArgs) -> None:
    """Print the JSON schema of a settings file, with the components that are installed."""
    schema = settings_class(given.registry).model_json_schema()
    print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
