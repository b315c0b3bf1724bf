"""The process ``paged-core``: what Ctrl-C does, and standard streams that are closed or full."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from traceback import walk_stack
from types import FrameType
from typing import Any, NoReturn

from paged_core.cli import FAILED, INTERRUPTED

_IMPORT = "<frozen importlib._bootstrap>"
"""The file of Python's own frames of an import."""


def run(main: Callable[[], int]) -> NoReturn:
    """Call ``main`` and exit with its status.

    The first Ctrl-C raises ``KeyboardInterrupt``, a second one stops at once. Standard error drops
    what cannot be written: a warning must not cost the result that it comes with.
    """
    if sys.stderr is None:  # closed; the next file to be opened would take its place
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    errors = _LossyFile(2, "w", closefd=False)
    sys.stderr = _opened(errors, sys.stderr)
    interrupts = _Interrupts(errors)
    status = FAILED
    atexit.register(lambda: _leave(status))  # registered first, so called last
    if sys.stdout is None:
        sys.stderr.write("error: standard output is closed, so there is nowhere to print\n")
        sys.exit(status)
    sys.stdout = _opened(_NamedFile(1, "w", closefd=False), sys.stdout)
    try:
        status = main()
        interrupts.stop_at_once()
    except BaseException:
        if not interrupts.any:
            raise
    status = INTERRUPTED if interrupts.any else status
    sys.exit(status)


def _leave(status: int) -> NoReturn:
    """End the process: while Python takes its modules down, Ctrl-C would kill it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # it may be closed
            stream.flush()
    os._exit(status)


class _Interrupts:
    """Handles SIGINT from when it is made until the process ends.

    It says so at once, and nothing comes after it. An import is not interrupted but the process
    ended: the C++ code of PyTorch aborts on an exception there, and others raise something else.
    """

    def __init__(self, errors: _LossyFile) -> None:
        self.any = False
        self._errors = errors
        signal.signal(signal.SIGINT, self._first)
        sys.unraisablehook = self._unraisable

    def stop_at_once(self) -> None:
        """Raise nothing from now on: the process ends."""
        signal.signal(signal.SIGINT, self._stop)

    def _first(self, _number: int, frame: FrameType | None) -> NoReturn:
        self.stop_at_once()
        if any(one.f_code.co_filename == _IMPORT for one, _ in walk_stack(frame)):
            self._stop()
        self._say()
        raise KeyboardInterrupt

    def _stop(self, *_: object) -> NoReturn:
        self._say()
        os._exit(INTERRUPTED)

    def _unraisable(self, failure: Any) -> None:
        """Stop if Ctrl-C came where nothing can be raised, in a destructor for example."""
        if failure.exc_type is KeyboardInterrupt:
            self._stop()
        sys.__unraisablehook__(failure)

    def _say(self) -> None:
        self.any = True
        self._errors.write(b"interrupted\n")
        self._errors.muted = True


class _NamedFile(FileIO):
    """Standard output; an error says so."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = "standard output"
            raise


class _LossyFile(FileIO):
    """Standard error, which drops what it cannot write, and all of it once it is muted."""

    muted = False

    def write(self, data: Any, /) -> int:
        with suppress(OSError):  # closed, full, or a pipe that has no reader any more
            if not self.muted:
                super().write(data)
        return len(data)


def _opened(file: FileIO, like: Any) -> TextIOWrapper:
    """Return a text stream to ``file``, buffered as Python buffers it, that encodes anything."""
    return TextIOWrapper(
        BufferedWriter(file),
        like.encoding if like else "utf-8",
        "backslashreplace",
        line_buffering=like.line_buffering if like else True,
        write_through=like.write_through if like else False,
    )
