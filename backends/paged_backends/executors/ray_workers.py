"""Workers as actors of a Ray cluster, on any of its machines.

Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications" (OSDI 2018). Ray places,
starts and ends them. Steps go over sockets of our own, as to processes, so that a worker is told of
the end of this process, and this process of the worker's, in the same way.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from paged_backends.executors.channel import Channel, free_port
from paged_backends.executors.worker import Worker
from paged_core.errors import EngineError, ExecutorLost, SettingsError, error_text

_PLACING = 120.0
"""Seconds that a cluster may take to find room, and then to start the actors."""
_GREETING = 5.0
"""Seconds that a connection may take to say whose it is."""
_HERE = "127.0.0.1"
_LONGEST = 4096
"""Bytes of what an actor says when it has connected."""


class Place(NamedTuple):
    """Where an actor is."""

    node: str
    host: str
    pid: int
    port: int
    """Free there."""


class RayWorkers:
    """A connection to a cluster: that of ``RAY_ADDRESS``, or one that is started here."""

    def __init__(self, num_workers: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise SettingsError(
                f"executor.placement: Ray cannot be imported ({error}); pip install "
                "'paged-core[ray]', or set it to process"
            ) from None
        self._ray: Any = ray
        self._group: Any = None
        self._is_ours = not ray.is_initialized()
        if not self._is_ours:
            return
        address = os.environ.get("RAY_ADDRESS")
        chosen: dict[str, Any] = {"address": address or "local"}
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            chosen |= {
                "include_dashboard": False,
                "num_cpus": max(num_workers, os.cpu_count() or 1),
            }
        try:
            ray.init(**chosen, logging_level="error", log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise SettingsError(f"executor.placement: no cluster at {address}: {why}") from None

    def start(
        self, names: Sequence[str], resources: Mapping[str, float], heartbeat_timeout: float
    ) -> tuple[list[Worker], str, int]:
        """Start an actor for each name, which has these resources.

        Returns:
            The workers; and the address of the first one, with a port that is free there. It is
            that of a machine to itself if all are on one.

        Raises:
            SettingsError: the cluster has no room.
            ExecutorLost: an actor has not come.
        """
        ray: Any = self._ray
        self.end()
        group = self._group = ray.util.placement_group([dict(resources)] * len(names), "PACK")
        if not group.wait(_PLACING):
            raise SettingsError(
                f"executor.placement: the Ray cluster has no room for {len(names)} ranks of "
                f"{dict(resources)}: it has {ray.cluster_resources()}"
            )
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        make = ray.remote(max_restarts=0)(_Actor)
        actors = [
            make.options(
                num_cpus=resources["CPU"],
                num_gpus=resources.get("GPU", 0),
                scheduling_strategy=strategy(group, placement_group_bundle_index=number),
            ).remote()
            for number in range(len(names))
        ]
        places: list[Place] = self._get([actor.place.remote() for actor in actors])
        token, here = secrets.token_hex(16), ray.util.get_node_ip_address()
        with socket.create_server((here, 0)) as listener:
            port = listener.getsockname()[1]
            ends = [
                actor.serve.remote(here, port, rank, token) for rank, actor in enumerate(actors)
            ]
            connections = self._accept(listener, ends, token)
        workers: list[Worker] = []
        for rank, (name, actor, place) in enumerate(zip(names, actors, places, strict=True)):
            steps, grammars = connections[rank, "steps"], connections[rank, "grammars"]
            workers.append(
                RayWorker(name, steps, grammars, heartbeat_timeout, actor, place, ends[rank], here)
            )
        is_one = len({place.node for place in places}) == 1
        return workers, _HERE if is_one else places[0].host, places[0].port

    def _accept(
        self, listener: socket.socket, ends: Sequence[Any], token: str
    ) -> dict[tuple[int, str], socket.socket]:
        """Wait until each actor has connected twice."""
        found: dict[tuple[int, str], socket.socket] = {}
        deadline = monotonic() + _PLACING
        listener.settimeout(0.2)
        while len(found) < 2 * len(ends):
            if monotonic() > deadline or self._ray.wait(list(ends), timeout=0)[0]:
                for each in found.values():
                    each.close()
                raise ExecutorLost("a rank on Ray has ended, or has not come; look at Ray's logs")
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                who = _greeted(connection, token)
                if who is None:
                    connection.close()
                else:
                    found[who] = connection
        return found

    def _get(self, asked: Sequence[Any]) -> list[Any]:
        try:
            answers: list[Any] = self._ray.get(list(asked), timeout=_PLACING)
        except self._ray.exceptions.RayError as error:
            raise ExecutorLost(
                f"a rank on Ray could not be started: {error_text(error).splitlines()[0]}"
            ) from error
        return answers

    def end(self) -> None:
        """Give back the places of the actors."""
        group, self._group = self._group, None
        if group is not None:
            self._ray.util.remove_placement_group(group)

    def close(self) -> None:
        """Leave the cluster; stop it if it was started here."""
        self.end()
        if self._is_ours:
            self._ray.shutdown()


class RayWorker(Worker):
    """An actor."""

    def __init__(
        self,
        name: str,
        steps: socket.socket,
        grammars: socket.socket,
        heartbeat_timeout: float,
        actor: Any,
        place: Place,
        end: Any,
        here: str,
    ) -> None:
        self.pid, self.place = place.pid, place
        self._end = end
        super().__init__(
            f"{name} (pid {place.pid}, on {place.host})",
            Channel(steps, heartbeat_timeout),
            Channel(grammars, heartbeat_timeout),
            heartbeat_timeout,
            partial(_kill, actor, place.pid if place.host == here else None, os.getpid()),
        )

    def _wait(self, seconds: float) -> bool:
        import ray

        with suppress(Exception):  # the cluster may be gone
            return bool(ray.wait([self._end], timeout=seconds)[0])
        return True

    def _ending(self) -> tuple[str, str]:
        return "has ended", "; look at Ray's logs, and whether memory was short"

    def _state(self) -> str:
        return "an actor of Ray"


def _greeted(connection: socket.socket, token: str) -> tuple[int, str] | None:
    """Return the rank and the kind of a connection; ``None``: it does not come from an actor, as
    anything may that can reach this machine."""
    connection.settimeout(_GREETING)
    try:
        with connection.makefile("rb") as lines:
            given, rank, kind = lines.readline(_LONGEST).split()
        if not hmac.compare_digest(given, token.encode()):
            return None
        connection.sendall(b".")
    except (OSError, ValueError):
        return None
    return int(rank), kind.decode()


def _kill(actor: Any, pid: int | None, owner: int) -> None:
    """End an actor; one that is stopped does not hear Ray."""
    if owner != os.getpid():
        return
    import ray

    with suppress(Exception):  # the cluster may be gone
        ray.kill(actor)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class _Actor:
    """Runs on a machine of the cluster."""

    def place(self) -> Place:
        """Say where this is."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return Place(node, ray.util.get_node_ip_address(), os.getpid(), free_port(""))

    def serve(self, host: str, port: int, rank: int, token: str) -> None:
        """Connect to the executor, and run what it asks for."""
        from paged_backends.executors.worker_main import serve

        ends = [_connect(host, port, f"{token} {rank} {kind}") for kind in ("steps", "grammars")]
        serve(*ends)


def _connect(host: str, port: int, hello: str) -> socket.socket:
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(hello.encode() + b"\n")
    if connection.recv(1) != b".":
        raise EngineError(f"{host}:{port} is not the executor that started this rank")
    return connection
