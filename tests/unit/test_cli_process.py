"""The process ``paged-core``: Ctrl-C at any time, and standard streams that are closed or full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.name == "nt", reason="uses a POSIX shell and signals"),
]

COMMAND = [sys.executable, "-m", "paged_core"]
HELPS = ["", "plugins", "config", "schema", "generate", "bench throughput", "replay", "new-plugin"]


def shell(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line],
        env=os.environ | {"COMMAND": " ".join(COMMAND)} | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def generate(redirection: str) -> subprocess.CompletedProcess[str]:
    """Generate with warnings (the pool is small) and the lines of ``--log-level info``."""
    options = "--num-blocks 8 --max-tokens 3 --log-level info"
    return shell(f"$COMMAND generate 'What is a block table?' {options} {redirection}")


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_a_warning_that_cannot_be_written_costs_no_text(errors: str) -> None:
    done = generate(errors)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("What is a block table? ")
    assert len(done.stdout.splitlines()) == 1


def test_an_error_that_cannot_be_written_keeps_its_status() -> None:
    assert shell("$COMMAND generate 2>/dev/full").returncode == 2
    assert shell("$COMMAND generate 2>&-").returncode == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_named(unbuffered: str) -> None:
    for command in ("config", "--help", "plugins"):
        done = shell(f"$COMMAND {command} >/dev/full", PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == 1
        assert done.stderr == "error: [Errno 28] No space left on device: 'standard output'\n"


def test_a_closed_standard_output_is_named() -> None:
    done = shell("$COMMAND config >&-")
    assert done.returncode == 1
    assert done.stderr == "error: standard output is closed, so there is nowhere to print\n"
    assert shell("$COMMAND config >&- 2>&-").returncode == 1


@pytest.mark.parametrize("command", [*(f"{name} --help" for name in HELPS), "plugins", "config"])
def test_a_reader_that_stops_reading_is_no_failure(command: str) -> None:
    done = shell(f"($COMMAND {command}; echo $? >&2) | true")
    assert done.stderr == "0\n"


GENERATE = ["generate", "a", "--max-tokens", "8"]
READY = """
import sys
from paged_core.cli import entry

def announce(event, args):
    if event == "import" and args[0] == "paged_core.cli.process":
        print("ready", flush=True)

sys.addaudithook(announce)
entry()
"""
"""Says that ``entry`` has begun; Python's own start, before that, takes Ctrl-C as it likes."""


def interrupted_after(seconds: float) -> tuple[int, str]:
    started = subprocess.Popen(
        [sys.executable, "-c", READY, *GENERATE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    started.stdout.readline()
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=120)
    return started.returncode, err


def check_interrupts(places: int) -> None:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", READY, *GENERATE], capture_output=True, check=True)
    whole = time.perf_counter() - began
    for place in range(places):
        assert interrupted_after(whole * place / places) in {
            (0, ""),  # it came after the end
            (130, "interrupted\n"),
            (130, "interrupted: 1 of 1 unfinished\n"),
        }


def test_ctrl_c_at_any_time_is_one_line_and_130() -> None:
    check_interrupts(4)


@pytest.mark.long
def test_ctrl_c_at_any_time_is_one_line_and_130_in_200_places() -> None:
    check_interrupts(200)


def test_ctrl_c_is_handled_before_anything_is_imported() -> None:
    """Modules that Python has not loaded by itself are imported where Ctrl-C is handled."""
    program = (
        "import sys; before = set(sys.modules); import paged_core.cli; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    own = ["paged_core", "paged_core._version", "paged_core.cli"]
    assert done.stdout == f"{['__future__', *own]}\n"


def test_what_an_interrupt_turns_into_is_an_interrupt() -> None:
    """Imports of C modules answer an interrupt with errors of their own."""
    program = """
import os, signal, sys
from paged_core.cli.process import run

def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        if sys.argv[1] == "raised":
            raise ImportError("numpy._core.multiarray failed to import")
        sys.stderr.write("error: numpy is broken\\n")
        return 1

run(main)
"""
    for way in ("raised", "reported"):
        done = subprocess.run(
            [sys.executable, "-c", program, way], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_interrupt_in_a_destructor_ends_the_process() -> None:
    program = """
import os, signal
from paged_core.cli.process import run

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

def main():
    Dying()
    return 0

run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_library_warning_that_cannot_be_written_costs_no_text() -> None:
    program = (
        "from paged_core import LLM\n"
        "with LLM(executor='memory', num_blocks=8, max_model_len=64) as llm:\n"
        "    from paged_core.log import get_logger\n"
        "    get_logger().warning('model_length_lowered')\n"
        "    print(len(llm.generate([[1, 2, 3]])[0].outputs))\n"
    )
    for errors in ("2>&-", "2>/dev/full"):
        done = shell(f'{sys.executable} -c "$PROGRAM" {errors}', PROGRAM=program)
        assert (done.returncode, done.stdout) == (0, "1\n")
