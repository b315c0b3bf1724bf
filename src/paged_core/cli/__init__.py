"""The command ``paged-core``. Nothing heavy is imported until a command needs it.

This module and the package's own import only what Python has loaded by itself: Ctrl-C while they
are imported would show a traceback, and later it does not.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def entry() -> NoReturn:
    """Be the process ``paged-core``."""
    try:
        from paged_core.cli.process import run

        run(main)
    except KeyboardInterrupt:  # before `run` handles Ctrl-C
        os.write(2, b"interrupted\n")
        os._exit(INTERRUPTED)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return the exit status: 0 ok, 1 failed, 2 bad usage, 130 after Ctrl-C.

    A reader that closes standard output has read what it wanted, as ``head`` does: that is 0.
    """
    from paged_core.errors import PagedCoreError, PluginError, SettingsError

    try:
        return _run(list(sys.argv[1:] if argv is None else argv), environ or os.environ)
    except (SettingsError, PluginError) as error:
        return _fail(str(error), BAD_USAGE)
    except PagedCoreError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return OK
    except SystemExit as stop:  # rich ends the process where it finds the pipe closed
        if isinstance(stop.__context__, BrokenPipeError):
            return OK
        raise
    except OSError as error:  # a full disk, a file that may not be written
        _drop_output()
        return _fail(str(error), FAILED)


def _run(args: list[str], environ: Mapping[str, str]) -> int:
    import typer

    from paged_core.cli.frame import Session, root

    session = Session.of(args, environ)
    try:  # typer's own main turns a closed pipe and Ctrl-C into exit statuses of its choice
        command = root()
        with command.make_context("paged-core", args or ["--help"], obj=session) as context:
            status = command.invoke(context)
    except typer.Exit as asked:
        status = asked.exit_code
    except typer.TyperException as error:
        from paged_core.cli.unknown_option import explain

        return _fail(explain(error, args, session.registry), error.exit_code)
    except typer.Abort:  # an interactive question was left unanswered
        return INTERRUPTED
    sys.stdout.flush()
    return status if isinstance(status, int) else OK


def _drop_output() -> None:
    """Drop what standard output does not take."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    if message:
        sys.stderr.write(f"error: {message}\n")
    return status
