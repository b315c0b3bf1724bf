"""Threads that divide work among themselves, and compute with PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_Task = TypeVar("_Task")


def in_threads(run: Callable[[_Task], None], tasks: Iterable[_Task]) -> None:
    """Call ``run`` for every task, in as many threads as PyTorch has.

    Inside, PyTorch uses one thread: operations on what fits into a processor's cache, divided among
    OpenMP's threads, are several times slower where other processes use the same processors.

    Raises:
        Exception: the first that ``run`` raised; tasks that were not begun are dropped.
    """

    def run_one(task: _Task) -> None:
        with torch.inference_mode():  # as tensors may be that were made by the thread that waits
            run(task)

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        for _ in pool.map(run_one, tasks):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # of threads that start later, too
