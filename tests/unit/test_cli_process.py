"""The process ``paged-core``: Ctrl-C, closed or full streams, and packages that are missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.name == "nt", reason="uses a POSIX shell and signals"),
]

COMMAND = [sys.executable, "-m", "paged_core"]
FULL = "error: [Errno 28] No space left on device: 'standard output'\n"
CLOSED = "error: standard output is closed, so there is nowhere to print\n"
WARNED = "generate 'What is it?' --num-blocks 8 --max-tokens 3 --log-level info"
"""The pool is small."""


def shell(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-c", line],
        env=os.environ | {"COMMAND": " ".join(COMMAND)} | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "unbuffered", "status", "out", "errors"),
    [
        pytest.param(f"{WARNED} 2>&-", "", 0, "What is it? ", "", marks=pytest.mark.long),
        (f"{WARNED} 2>/dev/full", "1", 0, "What is it? ", ""),
        ("generate 2>/dev/full", "", 2, "", ""),
        ("generate 2>&-", "1", 2, "", ""),
        ("config >/dev/full", "", 1, "", FULL),
        ("--help >/dev/full", "1", 1, "", FULL),
        ("config >&-", "1", 1, "", CLOSED),
        ("config >&- 2>&-", "", 1, "", ""),
        ("config --help | true", "", 0, "", ""),
        ("plugins | true", "1", 0, "", ""),
    ],
)
def test_standard_streams(line: str, unbuffered: str, status: int, out: str, errors: str) -> None:
    """Neither a warning nor an error that cannot be written changes the status or the output."""
    done = shell(f"set -o pipefail; $COMMAND {line}", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (status, errors)
    assert done.stdout.startswith(out)
    assert len(done.stdout.splitlines()) == bool(out)


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


@pytest.mark.parametrize("places", [2, pytest.param(200, marks=pytest.mark.long)])
def test_ctrl_c_at_any_time_is_one_line_and_130(places: int) -> None:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", READY, *GENERATE], capture_output=True, check=True)
    whole = time.perf_counter() - began
    for place in range(places):
        assert interrupted_after(whole * place / places) in {
            (0, ""),  # it came after the end
            (130, "interrupted\n"),
            (130, "interrupted: 1 of 1 unfinished\n"),
        }


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


INTERRUPTED = """
import os, signal, sys
from paged_core.cli.process import run

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

def main():
    if sys.argv[1] == "in a destructor":
        type("Dying", (), {"__del__": interrupt})()
        return 0
    try:
        interrupt()
    except KeyboardInterrupt:
        if sys.argv[1] == "raised":
            raise ImportError("numpy._core.multiarray failed to import")
        sys.stderr.write("error: numpy is broken\\n")
        return 1

run(main)
"""


@pytest.mark.parametrize("way", ["raised", "reported", "in a destructor"])
def test_what_an_interrupt_turns_into_is_an_interrupt(way: str) -> None:
    """Imports of C modules answer an interrupt with errors of their own."""
    command = [sys.executable, "-c", INTERRUPTED, way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


LIBRARY = (
    "from paged_core.log import get_logger; get_logger().warning('model_length_lowered'); print(1)"
)


@pytest.mark.parametrize("errors", ["2>&-", "2>/dev/full"])
def test_a_library_warning_that_cannot_be_written_raises_nothing(errors: str) -> None:
    # unbuffered: else Python itself ends with 120, as of any text that it cannot write at its end
    done = shell(f'{sys.executable} -u -c "$PROGRAM" {errors}', PROGRAM=LIBRARY)
    assert (done.returncode, done.stdout) == (0, "1\n")


WITHOUT_EXTRAS = """
from importlib.machinery import PathFinder

found = PathFinder.find_spec.__func__
missing = {"aiohttp", "httptools", "matplotlib", "msgspec", "onnxruntime", "starlette", "uvicorn"}

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in missing else found(cls, name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("serve", "serve"),
        ("chat http://127.0.0.1:9", "serve"),
        ("compare few_shot --vary queue_order=fcfs,sjf --html report.html", "lab"),
        ("generate Hello --runner onnxruntime", "onnx"),
    ],
)
def test_a_package_that_is_missing_is_one_line_that_names_its_extra(
    line: str, extra: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    done = shell(f"cd {tmp_path}; $COMMAND {line} </dev/null", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert f"pip install 'paged-core[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
