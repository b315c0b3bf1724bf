"""Suites that others wrote, in an environment of their own, against a server of ours.

Each expected failure is in a file beside them with its reason. A test that fails or passes without
being expected to, and a line that no test matches, are shown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import venv
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

import pytest

from server.served import ServeProcess, ask, serve_process

pytestmark = pytest.mark.long
_FOLDER = Path(__file__).parent / "suites"
_REQUIREMENTS = _FOLDER / "requirements.txt"
_MODELS = '["demo", "gpt-6-astra", "gpt-3.5-turbo-instruct"]'
"""Names of models in openai's tests."""
_OPENAI = ("test_completions.py", "test_models.py", "test_responses.py", "chat", "responses")
_PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "-o", "addopts="),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"),
    *("-o", "asyncio_default_fixture_loop_scope=session", "-o", "junit_family=xunit1"),
)


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", *arguments, "--quiet", "--retries", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and re.search("[Cc]onnection|ProxyError|[Tt]imeout", done.stderr):
        pytest.skip(f"PyPI is not reachable: {done.stderr.strip().splitlines()[-1]}")
    assert not done.returncode, done.stderr


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the suites."""
    folder = tmp_path_factory.mktemp("suites")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _pip(python, "install", "--requirement", str(_REQUIREMENTS))
    return python


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    options = ("--tool-parser", "hermes", "--server.served-model-name", _MODELS)
    with serve_process(*options) as served:
        served.port()
        yield served


def run(python: Path, served: ServeProcess, folder: Path, *arguments: str, **environ: str) -> str:
    """Run a command in a folder, and return what it prints, after its exit status."""
    done = subprocess.run(
        [str(python), *arguments],
        cwd=folder,
        env={
            **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
            "TEST_API_BASE_URL": f"http://127.0.0.1:{served.port()}/v1",
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"exit status {done.returncode}\n{done.stdout}"


def outcomes(report: Path) -> dict[str, str | None]:
    """Return the message of each test that failed, or ``None``; skipped ones are left out."""
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            failures = [*case.iter("failure"), *case.iter("error")]
            name = f"{case.get('file')}::{case.get('name')}"
            message = failures[0].get("message", "")[:300] if failures else None
            found[name] = found.get(name) or message
    return found


def check(found: dict[str, str | None], expectations: str) -> None:
    """Compare outcomes with the lines of a file, ``PATTERN : REASON``."""
    text = (_FOLDER / expectations).read_text()
    patterns = [line.split(" : ")[0] for line in text.splitlines() if not line.startswith("#")]
    expected = {
        name: [each for each in patterns if fnmatchcase(name.partition("[")[0], each)]
        for name in found
    }
    used = {each for matching in expected.values() for each in matching}
    wrong = [
        f"{name}: {'fails: ' + message if message is not None else 'passes'}"
        for name, message in found.items()
        if (message is None) == bool(expected[name])
    ]
    wrong += [f"{expectations}: no test matches {each!r}" for each in patterns if each not in used]
    assert not wrong, "not as expected:\n" + "\n".join(wrong)


def test_openai_python(python: Path, served: ServeProcess, tmp_path: Path) -> None:
    pinned = re.search(r"^openai\S*==(\S+)", _REQUIREMENTS.read_text(), re.MULTILINE)
    assert pinned is not None
    wanted = ("--no-binary", "openai", "--no-deps", f"openai=={pinned[1]}")
    _pip(python, "download", *wanted, "--dest", str(tmp_path))
    (archive,) = tmp_path.glob("openai-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    folder, report = tmp_path / f"openai-{pinned[1]}", tmp_path / "report.xml"
    tests = [f"tests/api_resources/{name}" for name in _OPENAI]
    options = ("-k", "not all_params and not path_params", f"--junitxml={report}")
    printed = run(python, served, folder, *_PYTEST, *options, *tests)
    assert report.exists(), printed
    check(outcomes(report), "openai.txt")


def test_langchain(python: Path, served: ServeProcess, tmp_path: Path) -> None:
    tokens = ask(served.port(), "POST", "/tokenize", {"prompt": '"}', "add_special_tokens": False})
    quote, brace = tokens[1]["tokens"]
    report = tmp_path / "report.xml"
    shutil.copy(_FOLDER / "langchain_suite.py", tmp_path)  # away from our conftest.py
    printed = run(
        python,
        served,
        tmp_path,
        *_PYTEST,
        f"--junitxml={report}",
        "langchain_suite.py",
        TEST_QUOTE=str(quote),
        TEST_BRACE=str(brace),
    )
    assert report.exists(), printed
    check(outcomes(report), "langchain.txt")


def test_schemathesis(python: Path, served: ServeProcess, tmp_path: Path) -> None:
    """No 5xx, and every answer is as the OpenAPI document says."""
    address = f"http://127.0.0.1:{served.port()}"
    printed = run(
        python,
        served,
        tmp_path,
        str(python.with_name("st")),
        *("run", f"{address}/openapi.json", "--url", address, "--mode", "all", "--no-color"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "200"),
        *("--request-timeout", "60", "--continue-on-failure", "--checks"),
        "not_a_server_error,status_code_conformance,content_type_conformance,"
        "response_headers_conformance,response_schema_conformance",
    )
    assert printed.startswith("exit status 0\n"), printed
