"""Which peers take part in a comparison, and the Python that runs each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paged_core.errors import SettingsError
from paged_core.settings import EngineSettings
from paged_plugins.bench.peer_process import PeerProcess
from paged_plugins.bench.peer_python import PeerPython
from paged_plugins.bench.peers.peer_engine import Task
from paged_plugins.bench.peers.table import PEERS, Peer


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine and its Python."""

    peer: Peer
    python: PeerPython
    settings: EngineSettings | None = None
    """Of this engine, where it takes part with others than those of the command."""
    label: str | None = None
    """What tables call it; ``None``: as the peer is called."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.label or self.peer.name

    def start(self, task: Task) -> PeerProcess:
        """Start its process, where all engines are to load ``task``.

        Raises:
            EngineError: it cannot load the model, or dies.
        """
        if self.settings is not None:
            task = replace(task, settings=task_settings(self.settings))
        return PeerProcess(self.peer, task, self.python, self.name)


def task_settings(settings: EngineSettings) -> dict[str, Any]:
    """Return settings as the process of an engine is told them."""
    return settings.model_dump(mode="json", exclude_unset=True)


def named_peers(
    named: Sequence[str], model: str, dtype: str, temperature: float = 0.0
) -> list[Choice]:
    """Return peers given as ``NAME``, from this environment, or ``NAME=PYTHON``, from another.

    Raises:
        SettingsError: there is no such peer, it is named twice, its Python, package or converted
            checkpoint is missing, or it cannot decode at the temperature.
    """
    chosen: dict[str, Choice] = {}
    for text in named:
        name, _, path = text.partition("=")
        if name not in PEERS:
            raise SettingsError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
        if name in chosen:
            raise SettingsError(f"peer {name!r} is named twice; name it once")
        peer, python = PEERS[name], PeerPython(path or None)
        if problem := peer.kind.problem(temperature):
            raise SettingsError(
                f"peer {name!r} cannot take part at temperature {temperature:g}: {problem}"
            )
        python.check(peer)
        if missing := peer.kind.missing(model, dtype):
            raise SettingsError(f"peer {name!r} has no checkpoint: {missing}")
        chosen[name] = Choice(peer, python)
    return list(chosen.values())


def installed_peers(
    model: str, dtype: str, tell: Callable[[str], None], temperature: float = 0.0
) -> list[Choice]:
    """Return the peers of this environment that can load the model.

    Args:
        tell: called with a message for each installed peer that has no converted checkpoint, or
            cannot decode at the temperature.
    """
    python = PeerPython()
    chosen = []
    for peer in PEERS.values():
        if not python.has(peer.package):
            continue
        if problem := peer.kind.problem(temperature) or peer.kind.missing(model, dtype):
            tell(f"left out {peer.name}: {problem}")
        else:
            chosen.append(Choice(peer, python))
    return chosen
