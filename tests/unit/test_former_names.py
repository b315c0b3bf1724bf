"""Names of modules of 0.1, which plugins written against it import."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from paged_core import former_names
from paged_core.former_names import MOVED

PUBLIC = {
    "paged_core.block_key": ["BlockKey"],
    "paged_core.cli.options": ["Given"],
    "paged_core.component": ["Component", "ComponentSettings", "Profile", "Slot"],
    "paged_core.engine": ["Engine"],
    "paged_core.engine_driver": ["EngineDriver"],
    "paged_core.hookspecs": ["hookimpl"],
    "paged_core.interfaces.model_size": ["ModelSize"],
    "paged_core.kv_cache": ["KVCache", "PrefixHit"],
    "paged_core.preemptor": ["Preemptor"],
    "paged_core.registry": ["Registry"],
    "paged_core.settings": ["EngineSettings", "load_settings", "settings_class"],
    "paged_core.testing": ["SchedulerConformance"],
    "paged_core.waiting_queue": ["WaitingQueue"],
}
"""What the author of a plugin imports."""


@pytest.mark.parametrize("former", sorted(MOVED))
def test_a_former_name_is_the_module_that_has_moved(former: str) -> None:
    new = import_module(f"paged_core.{MOVED[former]}")
    sys.modules.pop(f"paged_core.{former}", None)
    with pytest.warns(DeprecationWarning, match=rf"{former} is now paged_core\.{MOVED[former]}"):
        found = import_module(f"paged_core.{former}")
    assert found is new
    assert new.__spec__ is not None
    assert new.__spec__.name == f"paged_core.{MOVED[former]}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_what_plugins_import_is_there(module: str) -> None:
    for name in PUBLIC[module]:
        assert getattr(import_module(module), name)


def test_other_names_are_unknown_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_module("paged_core.no_such_module")


def test_it_is_installed_once() -> None:
    before = list(sys.meta_path)
    former_names.install()
    assert sys.meta_path == before


def test_it_costs_no_import() -> None:
    plain = [sys.executable, "-S", "-E", "-I", "-c"]
    path = f"import sys; sys.path[:] = {sys.path!r}; before = set(sys.modules); "
    code = "import paged_core; found = set(sys.modules) - before; "
    code += "print(sorted({'typing', 'importlib.abc'} & found))"
    done = subprocess.run([*plain, path + code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
