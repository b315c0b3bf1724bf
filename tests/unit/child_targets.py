"""Functions that children of tests run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time

from paged_core.processes.channel import ANSWER
from paged_core.processes.child_main import Parent


def echo(parent: Parent) -> None:
    """Say the argument, and then what is said, until the end."""
    channel = parent.channels[0]
    channel.send(ANSWER, parent.arguments[0].encode())
    while (message := parent.messages.get())[0] == ANSWER:
        channel.send(*message)


def exit(parent: Parent) -> None:  # noqa: A001 - as it is called
    """Exit with the argument."""
    sys.stderr.flush()
    os._exit(parent.arguments[0])


def fail(parent: Parent) -> None:
    """Raise."""
    raise LookupError("a deliberate failure")


def kill(parent: Parent) -> None:
    """Send a signal to this process."""
    os.kill(os.getpid(), parent.arguments[0])


def sleep(parent: Parent) -> None:
    """Answer heartbeats alone."""
    parent.channels[0].send(ANSWER)
    time.sleep(600)


def hold_the_lock(parent: Parent) -> None:
    """Let no other thread of Python run."""
    parent.channels[0].send(ANSWER)
    ctypes.PyDLL(None).sleep(600)


def start_others(parent: Parent) -> None:
    """Start a process, as a compiler would be."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
        parent.channels[0].send(ANSWER)
        time.sleep(600)
