"""Runs that are kept one by one, beside the tables of a study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from paged_core.plugins.registry import Registry
from paged_plugins.lab.results.store import RecordFile
from paged_plugins.lab.tasks.packages import digest
from paged_plugins.lab.tasks.pool import Runner
from paged_plugins.lab.tasks.task import Ran, Task, TaskDigests
from paged_plugins.written_files import unwritable


class KeptRuns:
    """Runs tasks, and keeps their records in a folder, so that each is run once.

    Args:
        runner: runs those of which there is no record.
        fresh: run all again.

    Raises:
        SettingsError: the folder cannot be made.
    """

    def __init__(
        self, folder: Path, registry: Registry, runner: Runner, *, fresh: bool = False
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error, "--output") from None
        self._folder, self._runner, self._fresh = folder, runner, fresh
        self._digests = TaskDigests(registry)

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Ran]:
        missing, places = list[Task](), dict[tuple[str, str, int], RecordFile]()
        for task in tasks:
            key = digest([self._digests.of(task), *task.place])
            file = RecordFile(self._folder, task.place, key)
            record = None if self._fresh else file.known()
            if record is None or record.num_errors:
                missing.append(task)
                places[task.place] = file
            else:
                yield Ran(task, record, None)
        for ran in map(self._digests.checked, self._runner(missing)):
            if ran.record is not None:
                places[ran.task.place].write(ran.record)
            yield ran
