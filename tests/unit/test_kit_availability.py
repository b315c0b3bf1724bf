"""A component that cannot be tested fails one test of its class, which says why; none is silent."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest

MODULES = {
    "broken.py": "def half(:\n    pass\n",
    "absent.py": "import math\nimport a_module_that_is_not_there\n",
    "leaving.py": "import sys\n\nsys.exit(3)\n",
    "sound.py": """
from paged_core.interfaces.victim import Victim

def raises():
    return {}["device"]

def false():
    return False

def refuses():
    return "there is no such device"

class Newest(Victim):
    def __init__(self, options, context, /):
        pass

    def choose(self, candidates, now, /):
        return candidates[-1]

class Misspelt(Victim):
    def chose(self, candidates, now, /):
        return candidates[-1]

class Timeless(Newest):
    def choose(self, candidates, /):
        return candidates[-1]
""",
}
TESTS = """
from typing import Literal

import pytest

from paged_core.plugins.component import Component, ComponentSettings
from paged_testing import VictimConformance, registry_with


class Settings(ComponentSettings):
    name: Literal["mine"] = "mine"


class Mine(VictimConformance):
    component = "mine"
    factory, asks, max_examples = "of_mine.sound:Newest", None, 2

    def make_registry(self):
        made = Component("victim", Settings, self.factory, summary="mine", check=self.asks)
        return registry_with(made)


class TestSyntax(Mine):
    factory = "of_mine.broken:Newest"

class TestImport(Mine):
    factory = "of_mine.absent:Newest"

class TestExit(Mine):
    factory = "of_mine.leaving:Newest"

class TestName(Mine):
    factory = "of_mine.sound:Oldest"

class TestMissing(Mine):
    factory = "of_mine.sound:Misspelt"

class TestArguments(Mine):
    factory = "of_mine.sound:Timeless"

class TestUnknown(Mine):
    component = "missing"

class TestRaises(Mine):
    asks = "of_mine.sound:raises"

class TestFalse(Mine):
    asks = "of_mine.sound:false"

class TestRefused(Mine):
    asks = "of_mine.sound:refuses"

class TestMayBe(Mine):
    asks = "of_mine.sound:refuses"
    may_be_skipped = True

class TestSkipped(Mine):
    @pytest.fixture(autouse=True)
    def _skips(self, request):
        if "not_every_case" not in request.node.name:
            pytest.skip("for no reason")

class TestSound(Mine):
    pass
"""
IMPORTED, SKIPPED = "test_can_be_imported", "test_not_every_case_is_skipped"
EXPECTED = {
    "TestSyntax": (
        IMPORTED,
        r"'mine' cannot be imported from .*: SyntaxError: invalid syntax \(at /\S+broken\.py:1\)$",
    ),
    "TestImport": (
        IMPORTED,
        r"ModuleNotFoundError: No module named 'a_module_\S+ \(at /\S+absent\.py:2 in <module>\)$",
    ),
    "TestExit": (IMPORTED, r"SystemExit: 3 \(at /\S+leaving\.py:3 in <module>\)$"),
    "TestName": (
        IMPORTED,
        r"imported from 'of_mine\.sound:Oldest': AttributeError: .* no attribute 'Oldest'$",
    ),
    "TestMissing": (IMPORTED, r"'mine' cannot be used: \S*sound\.py: Misspelt lacks choose\(\)"),
    "TestArguments": (
        IMPORTED,
        r"sound\.py:\d+: Timeless\.choose\(\) cannot be called with \(self, candidates: .*, now: "
        ".*: too many positional arguments",
    ),
    "TestUnknown": (
        IMPORTED,
        r"no victim is called 'missing'; there are: .* note: plugin 'halved' \(of-mine 1\) is "
        r"broken: SyntaxError: invalid syntax \(at /\S+/of_mine/broken\.py:1\)$",
    ),
    "TestRaises": (
        IMPORTED,
        r"check of victim 'mine' raised: KeyError: 'device' \(at /\S+sound\.py:5 in raises\)$",
    ),
    "TestFalse": (
        IMPORTED,
        "the check of victim 'mine': 'of_mine.sound:false' returned False, and may",
    ),
    "TestRefused": (SKIPPED, "was skipped: there is no such device; .*may_be_skipped = True"),
    "TestSkipped": (SKIPPED, "was skipped: for no reason; .*may_be_skipped = True"),
}
"""Classes, the only test of each that fails, and what it says."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints of the classes."""
    folder = tmp_path_factory.mktemp("kit")
    (folder / "of_mine").mkdir()
    (folder / "of_mine" / "__init__.py").touch()
    for name, source in MODULES.items():
        (folder / "of_mine" / name).write_text(source)
    (folder / "test_mine.py").write_text(TESTS)
    (folder / "of_mine-1.dist-info").mkdir()
    (folder / "of_mine-1.dist-info" / "METADATA").write_text("Name: of-mine\nVersion: 1\n")
    (folder / "of_mine-1.dist-info" / "entry_points.txt").write_text(
        "[paged_core]\nhalved = of_mine.broken\n"
    )
    command = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_one_test_fails_and_says_why(printed: str, name: str) -> None:
    test, message = EXPECTED[name]
    assert re.findall(rf"::{name}::(\w+) .*(?:FAILED|ERROR) ", printed) == [test]
    (section,) = re.findall(rf"_+ {name}\.{test} _+\n(.*?)\n[_=]{{3}}", printed, re.DOTALL)
    section = section.replace("\nnote: plugin", " note: plugin")
    assert "\n" not in section, "the failure is one line"
    assert re.search(message, section)


@pytest.mark.parametrize("name", ["TestMayBe", "TestSound"])
def test_what_may_be_skipped_and_what_is_sound_pass(printed: str, name: str) -> None:
    outcomes = Counter(re.findall(rf"::{name}::\S.* (PASSED|FAILED|SKIPPED|ERROR)", printed))
    assert set(outcomes) <= {"PASSED", "SKIPPED"}
    assert (outcomes["SKIPPED"] > 10) == (name == "TestMayBe")
