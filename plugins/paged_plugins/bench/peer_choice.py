"""Which peers take part in a comparison, and the Python that runs each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paged_core.errors import SettingsError
from paged_plugins.bench.peer_python import PeerPython
from paged_plugins.bench.peers.table import PEERS, Peer


@dataclass(frozen=True, slots=True)
class Choice:
    """A peer and its Python."""

    peer: Peer
    python: PeerPython


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
