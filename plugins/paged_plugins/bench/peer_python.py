"""The Python that runs a peer: ours, or that of another virtual environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from paged_core.errors import SettingsError
from paged_plugins.bench.peers.table import Peer

_OLDEST = (3, 11)
_PROBE_SECONDS = 60
_PROBE = """
import sys
sys.path[:] = [place for place in sys.path if place]
import json
from importlib.util import find_spec
found = [package for package in sys.argv[1:] if find_spec(package) is not None]
print(json.dumps([list(sys.version_info[:2]), sys.prefix, found]))
"""
_START = """
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
spec = ModuleSpec("paged_plugins", None, is_package=True)
spec.submodule_search_locations.append(sys.argv[1])
sys.modules["paged_plugins"] = module_from_spec(spec)
from paged_plugins.bench.peers.server import serve
serve(sys.argv[2])
"""
"""Makes our folder importable as a package, without anything beside it."""
_FOLDER = Path(__file__).parents[1]


class PeerPython:
    """Finds packages in an environment, and starts peers there.

    Args:
        path: its interpreter; ``None``: the one that runs this process.

    Raises:
        SettingsError: there is no Python at the path, or it is too old.
    """

    def __init__(self, path: str | None = None) -> None:
        self._own = path is None
        self.path = sys.executable if path is None else str(Path(path).expanduser())
        self.prefix = sys.prefix
        """Root folder of the environment."""
        if not self._own:
            version, self.prefix, _ = self._ask()
            if tuple(version) < _OLDEST:
                raise SettingsError(
                    f"{self.path} is Python {version[0]}.{version[1]}, and a peer needs "
                    f"{_OLDEST[0]}.{_OLDEST[1]} or newer; make an environment with a newer Python"
                )

    def has(self, package: str) -> bool:
        """Whether ``package`` can be imported there; it is not imported."""
        return find_spec(package) is not None if self._own else bool(self._ask(package)[2])

    def check(self, peer: Peer) -> None:
        """Check that the peer's package is installed.

        Raises:
            SettingsError: it is not.
        """
        if not self.has(peer.package):
            raise SettingsError(
                f"peer {peer.name!r} needs the package {peer.package}, and {self.path} does not "
                f"find it; install it with `{self.path} -m pip install {peer.distribution}`, or "
                f"name the Python of an environment that has it: --peer {peer.name}=PATH"
            )

    def command(self, peer: Peer) -> list[str]:
        """Return the command line that runs the peer's side of a comparison."""
        return [self.path, "-P", "-c", _START, str(_FOLDER), peer.name]

    def environ(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return our environment with ``variables`` set; ``PYTHONPATH`` and the like are left out
        for another Python.
        """
        environ = dict(os.environ)
        if not self._own:
            for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
                environ.pop(name, None)
        return environ | dict(variables)

    def _ask(self, *packages: str) -> tuple[list[int], str, list[str]]:
        """Return its version, its prefix, and the members of ``packages`` that it finds."""
        try:
            done = subprocess.run(
                [self.path, "-c", _PROBE, *packages],
                capture_output=True,
                text=True,
                timeout=_PROBE_SECONDS,
                check=True,
                env=self.environ({}),
            )
            version, prefix, found = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise SettingsError(
                f"{self.path} does not work as a Python ({error.__class__.__name__}: "
                f"{str(error)[:200]}); give the path of an environment's Python, such as "
                "/opt/other/bin/python"
            ) from error
        return version, prefix, found
