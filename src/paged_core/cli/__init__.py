"""The command ``paged-core``. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from paged_core.errors import PagedCoreError, PluginError, SettingsError

OK, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


def entry() -> NoReturn:
    """Be the process ``paged-core``. The first Ctrl-C interrupts, a second one stops at once."""
    signal.signal(signal.SIGINT, _interrupt)
    if sys.stdout is None:
        sys.exit(_fail("standard output is closed, so there is nowhere to print", FAILED))
    status = main()
    signal.signal(signal.SIGINT, _stop_at_once)  # no traceback while Python takes itself down
    sys.exit(status)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command and return the exit status: 0 ok, 1 failed, 2 bad usage, 130 after Ctrl-C."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), environ or os.environ)
    except (SettingsError, PluginError) as error:
        return _fail(str(error), BAD_USAGE)
    except PagedCoreError as error:
        return _fail(str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:  # a full disk, a file that may not be written
        return _fail(str(error), FAILED)


def _run(args: list[str], environ: Mapping[str, str]) -> int:
    import typer

    from paged_core.cli.frame import Session, root

    session = Session.of(args, environ)
    try:
        status = root().main(
            args or ["--help"], prog_name="paged-core", standalone_mode=False, obj=session
        )
    except typer.TyperException as error:
        message = error.format_message()
        notes = session.registry.notes if message.startswith("No such option") else ()
        return _fail("\n".join((message, *notes)), error.exit_code)
    except typer.Abort:  # an interactive question was left unanswered
        return INTERRUPTED
    sys.stdout.flush()
    return status if isinstance(status, int) else OK


def _interrupt(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGINT, _stop_at_once)
    raise KeyboardInterrupt


def _stop_at_once(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def _fail(message: str, status: int) -> int:
    if message and sys.stderr is not None:
        sys.stderr.write(f"error: {message}\n")
    return status
