"""Children as actors of a Ray cluster, on any of its machines.

Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications" (OSDI 2018). Ray places,
starts and ends them. Messages go over sockets of our own, as to processes of this machine, so that
a child is told of the end of this program, and this program of the child's, in the same way.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Event, RLock, Thread
from time import monotonic
from typing import Any, NamedTuple

from paged_core.errors import EngineError, SettingsError, error_text
from paged_core.log import get_logger
from paged_core.processes.beat import Beat
from paged_core.processes.channel import Channel, free_port
from paged_core.processes.child import Child
from paged_core.processes.child_main import Parent, adopt, imported

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with the connection."""
_REMEDY = "; set RAY_ADDRESS to the address of its head, or unset it to start one here"
_NO_REASON = re.compile(r"\t(class_name|actor_id|pid|name|namespace|ip): |  ")
_GREETING = 5.0
"""Seconds that a connection may take to say whose it is."""
_LOOK = 0.2
"""Seconds between two looks at an actor that has not connected."""
TOLD = 10.0
"""Seconds after which the log says what actors wait for."""
_LONGEST = 4096
"""Bytes of what an actor says when it has connected."""

_calls = RLock()
"""Held during calls of Ray, which ends the process if its connection ends meanwhile."""

_log = get_logger()


def unavailable_reason() -> str | None:
    """Return why there can be no connection, or ``None``."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        return f"Ray cannot be imported ({error}); pip install 'paged-core[ray]'"
    return None


class Cluster:
    """A cluster: that of the program, one that is running, or one that is started here.

    Args:
        setting: what asked for it, for errors.
        address: of a cluster; ``None``: that of the program, or of ``RAY_ADDRESS``, or ``LOCAL``.
        num_cpus: of a cluster that is started here; ``None``: as many as there are.
        shows_logs: whether what workers write is written here, too.

    Raises:
        SettingsError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(
        self,
        setting: str,
        address: str | None = None,
        *,
        num_cpus: int | None = None,
        shows_logs: bool = False,
    ) -> None:
        if (reason := unavailable_reason()) is not None:
            raise SettingsError(f"{setting}: {reason}")
        import ray

        self.ray: Any = ray
        self._is_ours = address is not None or not ray.is_initialized()
        if not self._is_ours:
            return
        remedy = "" if address else _REMEDY
        address = address or os.environ.get("RAY_ADDRESS") or LOCAL
        chosen: dict[str, Any] = {"address": address}
        if address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            chosen |= {"include_dashboard": False, "num_cpus": num_cpus}
        try:
            ray.init(**chosen, logging_level="error", log_to_driver=shows_logs)
        except (ConnectionError, ValueError, RuntimeError) as error:
            why = error_text(error).partition("\n")[0]
            place = "on this machine" if address == LOCAL else f"at {address}"
            raise SettingsError(f"{setting}: no Ray cluster {place}: {why}{remedy}") from None

    def close(self) -> None:
        """Leave it, once no call of it goes on; one that was started here ends."""
        if not self._is_ours:
            return
        if not _calls.acquire(timeout=TOLD):
            _log.warning(
                "ray_connection_left", reason=f"a call of Ray did not return in {TOLD:g} s"
            )
            return
        try:
            self.ray.shutdown()
        finally:
            _calls.release()


@contextmanager
def _connection() -> Iterator[None]:
    """Hold the connection while Ray is called.

    Raises:
        EngineError: It has ended.
    """
    import ray

    with _calls:
        if not ray.is_initialized():
            raise EngineError("the connection with Ray has ended")
        yield


def room(ray: Any, wanted: Mapping[str, float]) -> str:
    """Say what an actor asks of a node, and what a cluster has of it."""
    try:
        with _connection():
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            free = ray.available_resources()
    except Exception as error:  # noqa: BLE001 - the cluster may be gone
        return f"the cluster does not say what it has: {reason_of(error)}"
    asked = (
        f"{amount:g} {name} (the largest has {max(has, default=0):g}, and {free.get(name, 0):g} of "
        f"{sum(has):g} are free)"
        for name, amount in wanted.items()
        if amount
        for has in [[node.get(name, 0) for node in nodes]]
    )
    return f"it asks one node of {len(nodes)} for {' and '.join(asked) or 'nothing'}"


class Place(NamedTuple):
    """Where an actor is."""

    node: str
    host: str
    pid: int
    port: int
    """Free there."""


class RayChild(Child):
    """An actor, which calls a function as a :class:`~paged_core.processes.child.PythonChild` does.

    Args:
        target, arguments, name, num_channels: as there.
        options: of the actor, for Ray.
    """

    def __init__(
        self,
        target: str,
        *arguments: Any,
        name: str,
        options: Mapping[str, Any],
        num_channels: int = 1,
    ) -> None:
        import ray

        self._start_name, self.pid, self.place = name, None, None
        self.beat = Beat()
        token = secrets.token_hex(16)
        with _connection():
            here = ray.util.get_node_ip_address()
            listener = socket.create_server((here, 0))
            actor = ray.remote(max_restarts=0)(_Actor).options(**options).remote()
            port = listener.getsockname()[1]
            done = actor.serve.remote(here, port, token, target, arguments, num_channels)
            self._killer = _Killer(actor, done, here)
            del actor, done
        self._met: Future[_Met] = Future()
        Thread(
            target=_meet,
            args=(listener, ray, token, num_channels, self._killer, self._met, options),
            name="paged_core Ray",
            daemon=True,
        ).start()
        super().__init__(name, self._killer)

    place: Place | None
    """Where it is, once it is connected."""
    shares_beat = False

    def connected(self, then: Callable[[], object]) -> None:
        self._met.add_done_callback(lambda _: then())

    def meet(self, seconds: float) -> None:
        try:
            met = self._met.result(seconds)
        except TimeoutError:
            raise TimeoutError(
                f"{self.name} has not come in {seconds:g} s: {self.state()}"
            ) from None
        if self.place is None:
            self.place, self.pid = met.place, met.place.pid
            self.name = f"{self._start_name} (pid {self.pid}, an actor of Ray on {met.place.host})"
            self.channels = [Channel(end) for end in met.ends]

    @property
    def has_ended(self) -> bool:
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        if not self._met.done():
            return False
        if self._met.exception() is not None or self._killer.lifeline is None:
            return True
        poll = select.poll()
        poll.register(self._killer.lifeline, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def how_it_ended(self) -> tuple[str, str]:
        return "has ended", "; look at Ray's logs, and whether memory was short"

    def state(self) -> str:
        return self._killer.waits_for if self.place is None else "an actor of Ray"

    def close(self, seconds: float = 0.0) -> None:
        super().close(seconds)
        self.beat.close()


class _Met(NamedTuple):
    """Connections of an actor."""

    place: Place
    ends: list[socket.socket]


class _Killer:
    """Ends an actor, once, in the process that started it alone.

    It alone refers to the actor and its call, as the end of the last reference is a call of Ray.
    """

    def __init__(self, actor: Any, done: Any, here: str) -> None:
        self._actor, self._done, self._here, self._owner = actor, done, here, os.getpid()
        self.is_called = Event()
        self.place: Place | None = None
        self.waits_for = "look at the cluster's room"
        """Room that it asks for, once it has waited."""
        self.lifeline: socket.socket | None = None

    def __call__(self) -> None:
        self.is_called.set()
        if self._owner == os.getpid():
            import ray

            with suppress(Exception), _connection():  # the cluster may be gone
                ray.kill(self._actor)
                self._actor = self._done = None
            if self.place is not None and self.place.host == self._here:
                with suppress(ProcessLookupError, PermissionError):  # if stopped, it hears no Ray
                    os.kill(self.place.pid, signal.SIGKILL)
        lifeline, self.lifeline = self.lifeline, None
        if lifeline is not None:
            lifeline.close()

    def reason(self, ray: Any) -> str | None:
        """Return how the actor has ended; ``None``: it has not."""
        try:
            with _connection():
                if self.is_called.is_set():
                    return "it was ended"
                with suppress(Exception):  # the cluster may be gone
                    if not ray.wait([self._done], timeout=0)[0]:
                        return None
                ray.get(self._done, timeout=1)
        except Exception as error:  # noqa: BLE001 - Ray raises what the actor raised
            return reason_of(error)
        return "it has ended; look at Ray's logs"


def _meet(
    listener: socket.socket,
    ray: Any,
    token: str,
    num_channels: int,
    killer: _Killer,
    met: Future[_Met],
    options: Mapping[str, Any],
) -> None:
    """Wait until an actor has connected as often as it is to, or has ended, or was killed."""
    found: dict[int, socket.socket] = {}
    place: Place | None = None
    listener.settimeout(_LOOK)
    silent_until: float | None = monotonic() + TOLD
    with listener:
        while len(found) <= num_channels:
            if (reason := killer.reason(ray)) is not None:
                for each in found.values():
                    each.close()
                met.set_exception(EngineError(f"an actor on Ray has not come: {reason}"))
                return
            if silent_until is not None and monotonic() > silent_until:
                silent_until = None
                wanted = {"CPU": options["num_cpus"], "GPU": options["num_gpus"]}
                killer.waits_for = room(ray, wanted)
                _log.warning("actor_waits", reason=killer.waits_for)
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                who = greeted(connection, token)
                if who is None:
                    connection.close()
                else:
                    number, place = who
                    found[number] = connection
    assert place is not None
    killer.place, killer.lifeline = place, found[num_channels]
    if killer.is_called.is_set():
        killer()
    met.set_result(_Met(place, [found[number] for number in range(num_channels)]))


def reason_of(error: Exception) -> str:
    """Return why an actor has ended, in a line: all that Ray says, without the names and numbers of
    the actor, and the places of a traceback."""
    first, *others = error_text(error).splitlines()
    told = [each.strip() for each in others if not _NO_REASON.match(each)]
    return " ".join([first, *told])


def greeted(connection: socket.socket, token: str) -> tuple[int, Place] | None:
    """Return the number of a connection, and where the actor is that made it; ``None``: it comes
    from none, as anything may that can reach this machine."""
    connection.settimeout(_GREETING)
    try:
        with connection.makefile("rb") as lines:
            given, number, place = lines.readline(_LONGEST).split(maxsplit=2)
        if not hmac.compare_digest(given, token.encode()):
            return None
        found = int(number), Place(*json.loads(place))
        connection.sendall(b".")
    except (OSError, ValueError, TypeError):
        return None
    return found


class _Actor:
    """Actor that Ray runs on a machine of the cluster."""

    def serve(
        self,
        host: str,
        port: int,
        token: str,
        target: str,
        arguments: Sequence[Any],
        num_channels: int,
    ) -> None:
        """Connect to the program that started it, and call the target."""
        import ray

        called = imported(target)
        node = ray.get_runtime_context().get_node_id()
        place = Place(node, ray.util.get_node_ip_address(), os.getpid(), free_port(""))
        hello = json.dumps(place)
        *ends, lifeline = (
            _connected(host, port, f"{token} {number} {hello}")
            for number in range(num_channels + 1)
        )
        adopt(lifeline)
        try:
            called(Parent(arguments, [Channel(end) for end in ends], Beat(), reads=False))
        finally:  # the actor stays until it is ended: this says that it has done its work
            lifeline.shutdown(socket.SHUT_WR)


def _connected(host: str, port: int, hello: str) -> socket.socket:
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(hello.encode() + b"\n")
    if connection.recv(1) != b".":
        raise EngineError(f"{host}:{port} is not the program that started this actor")
    return connection
