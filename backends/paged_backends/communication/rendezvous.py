"""The meeting of the ranks of one machine: a socket without a file, which passes descriptors.

The socket's name is in no folder, and the memory has none: whatever is killed, nothing stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import selectors
import socket
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from paged_backends.communication.calls import rank_names
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import ExecutorLost

_PAUSE = 0.01
"""Seconds between attempts to reach rank 0."""
_LONGEST = 1 << 16
"""Bytes of a message."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Descriptors of this process for all that the ranks share."""

    memory: int
    """Memory that all ranks map."""
    lifelines: Mapping[int, int]
    """Ends of pipes, by rank: one is hung up when the process of its rank ends."""
    own_lifeline: int
    """The other end of this rank's pipe."""
    has_cores: bool
    """True if there is a core for each rank."""

    def ended(self) -> int:
        """Return the ranks whose processes have ended, or have left the group: a bit each."""
        poll = select.poll()
        for descriptor in self.lifelines.values():
            poll.register(descriptor, 0)
        hung_up = {descriptor for descriptor, _ in poll.poll(0)}
        return sum(1 << rank for rank, each in self.lifelines.items() if each in hung_up)

    def close(self) -> None:
        """Close the descriptors, by which the others see that this rank has left."""
        _close((self.own_lifeline, self.memory, *self.lifelines.values()))


def meet(context: CommunicatorContext, memory: int, terms: str) -> Meeting:
    """Meet the other ranks.

    Args:
        memory: of rank 0, which the others get. It is closed if it is of no use.
        terms: what must be the same for all ranks.

    Raises:
        ExecutorLost: not all ranks have come in time, or one has ended, or has other terms.
    """
    guests = _Guests(context, terms)
    read_end, write_end = os.pipe()
    with ExitStack() as on_failure:
        on_failure.callback(os.close, write_end)
        if context.rank == 0:
            welcome, (memory, *lifelines) = guests.gather(read_end, memory)
        else:
            welcome, (memory, *lifelines) = guests.join(read_end)
        on_failure.pop_all()
    os.close(lifelines.pop(context.rank))
    others = (rank for rank in range(context.size) if rank != context.rank)
    return Meeting(memory, dict(zip(others, lifelines, strict=True)), write_end, welcome["cores"])


@dataclass
class _Guests:
    """The ranks that have come to rank 0, on its side; on the others, what it said of them."""

    context: CommunicatorContext
    terms: str
    connections: dict[int, socket.socket] = field(default_factory=dict)
    lifelines: dict[int, int] = field(default_factory=dict)
    cores: set[int] = field(default_factory=lambda: os.sched_getaffinity(0))

    def __post_init__(self) -> None:
        group = self.context.group
        self.deadline = monotonic() + group.timeout
        self.address = b"\0paged_core." + hashlib.sha256(group.name.encode()).hexdigest().encode()
        self.missing = [rank for rank in range(self.context.size) if rank != self.context.rank]

    def late(self, missing: Iterable[int]) -> ExecutorLost:
        return ExecutorLost(
            f"{rank_names(missing)} of {self.context.size} did not come to the group within "
            f"{self.context.group.timeout:g} s: look at what they logged, and whether they use "
            "the same communicator"
        )

    # ------------------------------------------------------------------ rank 0

    def gather(self, lifeline: int, memory: int) -> tuple[dict[str, Any], list[int]]:
        """Wait for all ranks, and give them the memory and the lifelines of all."""
        self.lifelines[0] = lifeline
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            on_failure = stack.enter_context(ExitStack())
            on_failure.callback(lambda: _close((memory, *self.lifelines.values())))
            listener = stack.enter_context(_socket())
            listener.bind(self.address)
            listener.listen(self.context.size)
            selector.register(listener, selectors.EVENT_READ)
            try:
                while self.missing:
                    ready = selector.select(max(0.0, self.deadline - monotonic()))
                    if not ready:
                        raise self.late(self.missing)
                    for key, _ in ready:
                        if key.fileobj is listener:
                            guest, _ = listener.accept()
                            stack.enter_context(guest)
                            if _is_ours(guest):
                                selector.register(guest, selectors.EVENT_READ)
                        elif not self._hear(key.fileobj):  # type: ignore[arg-type]
                            selector.unregister(key.fileobj)
            except ExecutorLost as error:
                self._tell({"error": str(error)})
                raise
            welcome = {"cores": len(self.cores) >= self.context.size}
            given = [memory, *(self.lifelines[rank] for rank in range(self.context.size))]
            self._tell(welcome, given)
            on_failure.pop_all()
        return welcome, given

    def _hear(self, guest: socket.socket) -> bool:
        """Read what a connection says; whether it may say more."""
        message, descriptors = _receive(guest)
        if message is None:
            for rank, known in self.connections.items():
                if known is guest:
                    raise ExecutorLost(
                        f"rank {rank} of {self.context.size} ended, or left the group, before "
                        f"{rank_names(self.missing)} had come"
                    )
            return False
        rank, terms = message["rank"], message["terms"]
        self.connections[rank] = guest
        if rank not in self.missing:
            _close(descriptors)
            raise ExecutorLost(f"two processes joined the group as rank {rank}")
        (self.lifelines[rank],) = descriptors
        self.missing.remove(rank)
        if terms != self.terms:
            raise ExecutorLost(f"rank {rank} joined with {terms}, and rank 0 with {self.terms}")
        self.cores.update(message["cores"])
        self._tell({"missing": self.missing})
        return True

    def _tell(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        for guest in self.connections.values():
            with suppress(OSError):  # it has ended, which its lifeline tells
                socket.send_fds(guest, [json.dumps(message).encode()], descriptors or [])

    # ------------------------------------------------------------------ the others

    def join(self, lifeline: int) -> tuple[dict[str, Any], list[int]]:
        """Come to rank 0, and wait until all have."""
        hello = {"rank": self.context.rank, "terms": self.terms, "cores": sorted(self.cores)}
        with _socket() as host:
            try:
                while host.connect_ex(self.address):
                    if monotonic() >= self.deadline:
                        raise self.late([0])
                    sleep(_PAUSE)
                if not _is_ours(host):
                    raise ExecutorLost("another user's process has taken the name of the group")
                socket.send_fds(host, [json.dumps(hello).encode()], [lifeline])
            finally:
                os.close(lifeline)
            missing = [0]
            while True:
                host.settimeout(max(0.001, self.deadline - monotonic()))
                try:
                    message, descriptors = _receive(host)
                except TimeoutError:
                    raise self.late(missing) from None
                if message is None:
                    raise ExecutorLost(f"rank 0 of {self.context.size} ended, or left the group")
                if "error" in message:
                    raise ExecutorLost(message["error"])
                if "missing" not in message:
                    return message, descriptors
                missing = message["missing"]


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_ours(peer: socket.socket) -> bool:
    """Return whether the other end belongs to this user: any process can use a socket's name."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _receive(peer: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return a message and its descriptors; ``None``: the other end was closed."""
    try:
        content, descriptors, _, _ = socket.recv_fds(peer, _LONGEST, 1 << 7)
    except ConnectionError:
        return None, []
    return (json.loads(content) if content else None), descriptors


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
