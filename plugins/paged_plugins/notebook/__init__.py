"""Studies and runs from Python: as pandas frames, and as pictures that a notebook shows."""

from paged_plugins.notebook.compared_study import ComparedStudy, compare
from paged_plugins.notebook.watched_run import WatchedRun, watch

__all__ = ["ComparedStudy", "WatchedRun", "compare", "watch"]
