"""Setting up on a fresh machine: which Python and which build of PyTorch are taken."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 4;; *) echo 3.12;; esac'
TOO_OLD = 'case "$2" in *ensurepip*) exit 3;; *) echo 3.9;; esac'
SHIM = "echo 'pyenv: python3: command not found' >&2; exit 127"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the Makefile is for Linux, macOS and WSL")


def serves(version: str, name: str) -> str:
    return f'echo "{version} /opt/{name}"'


def find_python(folder: Path, fakes: dict[str, str], **environ: str) -> tuple[int, str, str]:
    """Run ``tools/find-python`` where only these Pythons exist."""
    for name, script in fakes.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "find-python")],
        env={"PATH": str(folder), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


FITS = {
    "plain python3 is preferred": ({"python3": "3.11", "python3.13": "3.13"}, "", "python3"),
    "a tested version is preferred to a newer one": (
        {"python3": "3.15", "python3.12": "3.12"},
        "",
        "python3.12",
    ),
    "a newer version is taken": ({"python3": "3.15"}, "", "python3"),
    "the user chooses": ({"python3": "3.11", "mine": "3.13"}, "mine", "mine"),
}
"""The Pythons of a machine, what the user asks for, and which one is taken."""


@pytest.mark.parametrize(("versions", "asked", "taken"), FITS.values(), ids=FITS)
def test_a_python_is_found(
    tmp_path: Path, versions: dict[str, str], asked: str, taken: str
) -> None:
    fakes = {name: serves(version, name) for name, version in versions.items()}
    environ = {"PYTHON": asked} if asked else {}
    status, path, said = find_python(tmp_path, fakes, **environ)
    assert (status, path) == (0, f"/opt/{taken}")
    assert ("newer than the tested versions" in said) == (versions[taken] == "3.15")


@pytest.mark.parametrize("unfit", [SHIM, TOO_OLD, WITHOUT_VENV])
def test_a_python_that_does_not_serve_is_passed_over(tmp_path: Path, unfit: str) -> None:
    fakes = {"python3": unfit, "python3.13": unfit, "python3.12": serves("3.12", "c")}
    assert find_python(tmp_path, fakes)[:2] == (0, "/opt/c")


@pytest.mark.parametrize(
    ("fakes", "asked", "answers"),
    [
        ({"python3": serves("3.11", "a")}, "missing", ["PYTHON=missing does not run"]),
        ({"python3": WITHOUT_VENV}, "", ["sudo apt-get install python3.12-venv"]),
        (
            {"python3": TOO_OLD},
            "",
            [
                "Python 3.11 or newer is needed; python3 is 3.9",
                "apt-get install python3 python3-venv",
            ],
        ),
        ({}, "", ["none was found"]),
    ],
    ids=["missing", "without venv", "too old", "none"],
)
def test_where_none_serves_the_answer_says_what_to_do(
    tmp_path: Path, fakes: dict[str, str], asked: str, answers: list[str]
) -> None:
    status, _, said = find_python(tmp_path, fakes, **({"PYTHON": asked} if asked else {}))
    assert status == 1
    assert all(answer in said for answer in answers), said


# ---------------------------------------------------------------------- the build of PyTorch

LINUX = {"uname": "echo Linux"}
GPU = {"nvidia-smi": "echo 'GPU 0: NVIDIA H100 (UUID: GPU-0)'"}
NO_DRIVER = {"nvidia-smi": "echo 'NVIDIA-SMI has failed'; exit 9"}


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _wheel(folder: Path, version: str) -> None:
    """Write an index with one build of torch that has no content."""
    listed = folder / "torch"
    listed.mkdir(parents=True)
    name, info = f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    with zipfile.ZipFile(listed / name, "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    (listed / "index.html").write_text(f'<a href="{name}">{name}</a>')


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """Serve an index with PyPI's build and one with the CPU build of the pinned version."""
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    (pin,) = (line.removeprefix("torch==") for line in pins if line.startswith("torch=="))
    _wheel(tmp_path / "served" / "pypi", pin)
    _wheel(tmp_path / "served" / "cpu", f"{pin}+cpu")
    handler = partial(_QuietHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def torch_index(folder: Path, fakes: dict[str, str], **environ: str) -> tuple[int, str, str]:
    """Run ``tools/torch-index`` on a machine with these commands, for a Python without torch."""
    python = folder / "bare-python"
    python.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" -I -S "$@"\n')  # type: ignore[attr-defined]
    for name, script in {"nvidia-smi": "exit 127", **fakes}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    for path in (python, folder / "nvidia-smi", folder / "uname"):
        path.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "torch-index"), str(python)],
        env={"PATH": f"{folder}:/usr/bin:/bin", **environ},
        capture_output=True,
        text=True,
        timeout=60,  # guards against hanging
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("fakes", "asked", "takes_cpu"),
    [
        (LINUX, "", True),
        (LINUX | NO_DRIVER, "", True),
        (LINUX | GPU, "", False),
        ({"uname": "echo Darwin"}, "", False),
        (LINUX | GPU, "cpu", True),
        (LINUX, "cuda", False),
        (LINUX, "pypi", False),
    ],
)
def test_the_cpu_build_is_for_linux_without_an_nvidia_gpu_or_on_demand(
    tmp_path: Path, index: str, fakes: dict[str, str], asked: str, takes_cpu: bool
) -> None:
    environ = {"TORCH_CPU_INDEX": f"{index}/cpu"} | ({"TORCH": asked} if asked else {})
    status, chosen, said = torch_index(tmp_path, fakes, **environ)
    assert (status, chosen) == (0, f"{index}/cpu" if takes_cpu else "")
    assert takes_cpu or not said
    if takes_cpu and not asked:
        assert "PyTorch's CPU build is installed" in said
        assert "TORCH=cuda" in said


def test_another_build_than_there_is_is_refused(tmp_path: Path) -> None:
    status, _, said = torch_index(tmp_path, LINUX, TORCH="rocm")
    assert status == 1
    assert "give cpu, cuda or pypi" in said


def test_an_index_that_does_not_answer_is_given_up_within_seconds(tmp_path: Path) -> None:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), _QuietHandler
    ) as silent:  # it accepts, and is silent
        address = f"http://127.0.0.1:{silent.server_port}"
        status, chosen, said = torch_index(tmp_path, LINUX, TORCH_CPU_INDEX=address)
    assert (status, chosen) == (0, "")
    assert "cannot be reached, so PyTorch's build of PyPI is installed" in said


@pytest.mark.parametrize(("extra", "version"), [("cpu", "+cpu"), ("pypi", "")])
def test_the_pin_takes_either_build(tmp_path: Path, index: str, extra: str, version: str) -> None:
    pip = [sys.executable, "-m", "pip", "--isolated", "download", "--no-deps", "--quiet"]
    pins, got = ROOT / "constraints.txt", tmp_path / "got"
    indexes = ["--index-url", f"{index}/pypi", "--extra-index-url", f"{index}/{extra}"]
    done = subprocess.run(
        [*pip, "--constraint", str(pins), "--dest", str(got), *indexes, "torch"],
        env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = got.iterdir()
    assert wheel.name.endswith(f"{version}-py3-none-any.whl")
