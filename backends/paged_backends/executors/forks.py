"""Forks of a process that has run steps: parent and child can both go on, with all their threads.

A fork copies one thread, and OpenMP in the child would wait for ever for the others. So the thread
that forks first ends its team of OpenMP threads; parent and child each start a new one when they
need it. PyTorch and the kernels share one OpenMP library.
"""

from __future__ import annotations

import ctypes
import os

_HARD = 2
"""``omp_pause_hard`` of OpenMP 5.0: end the threads."""


def _end_threads() -> None:
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(_HARD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)
