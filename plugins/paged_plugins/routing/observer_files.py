"""Files that observers of several engines write."""

from __future__ import annotations

from pathlib import Path

from paged_core.plugins.component import ComponentSettings
from paged_core.settings.schema import EngineSettings


def with_own_files(settings: EngineSettings, number: int) -> EngineSettings:
    """Return the settings of one of several engines, whose observers write files of their own.

    A path among their options gets the number of the engine: ``log@0.jsonl`` for ``log.jsonl``. A
    terminal or pipe is written by all.
    """

    def own(observer: ComponentSettings) -> ComponentSettings:
        files = {
            key: path.with_stem(f"{path.stem}@{number}")
            for key, path in observer
            if isinstance(path, Path) and (path.is_file() or not path.exists())
        }
        return observer.model_copy(update=files)

    return settings.model_copy(update={"observers": tuple(map(own, settings.observers))})
