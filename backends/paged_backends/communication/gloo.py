"""Component ``gloo``: PyTorch's collective operations over TCP, on a CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # it has stores, unannounced
    FileStore,
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

from paged_backends.communication.calls import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    CODES,
    KINDS,
    call_text,
    check_tensor,
    rank_names,
    sum_in_order,
)
from paged_backends.communication.rendezvous import meet
from paged_backends.communication.settings import GlooSettings
from paged_core.engine.contexts import CommunicatorContext
from paged_core.errors import ExecutorLost, error_text
from paged_core.interfaces.communicator import Communicator

_LONGEST_ROLL_CALL = 2.0
"""Seconds."""
_PAUSE = 0.01
"""Seconds between two looks at the store."""


class GlooCommunicator(Communicator):
    """A group of its own, beside any that the program has.

    Gloo does not say which rank it misses. When an operation fails, the ranks that are there write
    so to the store, and rank 0 names the others to them.
    """

    def __init__(self, options: GlooSettings, context: CommunicatorContext, /) -> None:
        self.rank, self.size = context.rank, context.size
        self._timeout = context.group.timeout
        self._roll_call = min(_LONGEST_ROLL_CALL, self._timeout / 4)
        self._number = 0
        self._lost = "it was closed"
        self._group: Any = None
        self._store: Any = self._meet(context)
        gloo: Any = ProcessGroupGloo
        chosen = gloo._Options()
        chosen._timeout = timedelta(seconds=self._timeout - 2 * self._roll_call)
        if context.group.is_on_one_machine:
            chosen._devices = [gloo.create_device(hostname="127.0.0.1")]
        else:
            chosen._devices = [gloo.create_default_device()]
        try:
            store = PrefixStore("gloo", self._store)
            self._group = gloo(store, self.rank, self.size, chosen)
        except RuntimeError as error:
            raise self._failed("the group was made", error) from error

    def _meet(self, context: CommunicatorContext) -> Store:
        """Make the store, and wait until all ranks have come to it.

        On one machine it is memory, and no network is needed: PyTorch's store over TCP looks up the
        names of addresses, which takes seconds where no name server answers.
        """
        if context.group.is_on_one_machine and sys.platform == "linux":
            return self._meet_in_memory(context)
        return self._meet_over_tcp(context)

    def _meet_in_memory(self, context: CommunicatorContext) -> Store:
        memory = os.memfd_create("paged_core.gloo") if self.rank == 0 else -1
        meeting = meet(context, memory, f"communicator 'gloo' of {self.size} ranks")
        # It stays open: a store writes to its file when it is deleted, and gloo may do that late.
        kept = os.dup(meeting.memory)
        meeting.close()
        store = FileStore(f"/proc/self/fd/{kept}", -1)
        store.set_timeout(timedelta(seconds=self._timeout))
        return store

    def _meet_over_tcp(self, context: CommunicatorContext) -> Store:
        group, deadline = context.group, monotonic() + self._timeout
        try:
            store = TCPStore(
                group.host,
                group.port,
                is_master=self.rank == 0,
                timeout=timedelta(seconds=self._timeout),
                wait_for_workers=False,
            )
            if self.rank == 0:
                missing = self._receive(store, deadline)
            else:
                patience = self._timeout + self._roll_call
                missing = _within(patience, lambda: self._come(store, deadline))
        except (RuntimeError, TimeoutError) as error:
            raise self._late([0], error) from error
        if missing:
            raise self._late(missing)
        return store

    def _receive(self, store: TCPStore, deadline: float) -> list[int]:
        """On rank 0, return the ranks that have not come by its deadline.

        The others are told before this one gives up, and the store with it.
        """
        missing = _missing(store, "came", self.size, deadline, [0])
        store.set("missing at the start", _list(missing))
        if missing:
            until = monotonic() + self._roll_call
            _missing(store, "told", self.size, until, [0, *missing])
        return missing

    def _come(self, store: TCPStore, deadline: float) -> list[int]:
        """Return the ranks that have not come, as rank 0 says, or at this rank's own deadline."""
        store.set(f"came/{self.rank}", "")
        while not store.check(["missing at the start"]) and monotonic() < deadline:
            sleep(_PAUSE)
        if store.check(["missing at the start"]):
            missing = _ranks(store.get("missing at the start"))
        else:
            others = [rank for rank in range(1, self.size) if not store.check([f"came/{rank}"])]
            missing = others or [0]
        store.set(f"told/{self.rank}", "")
        return missing

    # ------------------------------------------------------------------ operations

    def all_reduce(self, tensor: Tensor, /) -> None:
        check_tensor(ALL_REDUCE, tensor)
        tensor.copy_(sum_in_order(self._gather(ALL_REDUCE, tensor)))

    def all_gather(self, tensor: Tensor, /) -> Tensor:
        return self._gather(ALL_GATHER, tensor)

    def broadcast(self, tensor: Tensor, /, source: int = 0) -> None:
        check_tensor(BROADCAST, tensor, source, self.size)
        self._agree(BROADCAST, tensor, source)
        content = tensor.cpu()
        if content.numel():
            self._wait(lambda group: group.broadcast(_bytes(content), source), BROADCAST)
        if content is not tensor:
            tensor.copy_(content)

    def close(self) -> None:
        self._group = self._store = None

    # ------------------------------------------------------------------ the ranks

    def _gather(self, kind: int, tensor: Tensor) -> Tensor:
        self._agree(kind, tensor)
        content = tensor.cpu().contiguous()
        gathered = content.new_empty((self.size, *content.shape))
        if content.numel():
            parts = [_bytes(part) for part in gathered]
            self._wait(lambda group: group.allgather([parts], [_bytes(content)]), kind)
        return gathered.to(tensor.device)

    def _agree(self, kind: int, tensor: Tensor, source: int = 0) -> None:
        """See that all ranks are asked for the same: gloo would give them wrong data."""
        self._number += 1
        call = torch.tensor([kind, CODES[tensor.dtype], source, self._number, tensor.nbytes])
        calls = torch.empty(self.size, len(call), dtype=call.dtype)
        self._wait(lambda group: group.allgather([list(calls)], [call]), kind)
        for rank, other in enumerate(calls):
            if not torch.equal(other, call):
                self._lost = (
                    f"rank {self.rank} was asked for {call_text(call.tolist())}, and rank {rank} "
                    f"for {call_text(other.tolist())}"
                )
                self._group = None
                raise ExecutorLost(self._lost)

    def _wait(self, start: Callable[[Any], Any], kind: int) -> None:
        if self._group is None:
            raise ExecutorLost(f"the group of {self.size} ranks is of no use: {self._lost}")
        try:
            start(self._group).wait()
        except RuntimeError as error:
            raise self._failed(KINDS[kind], error) from error
        except BaseException as error:  # Ctrl-C: this rank may have come halfway
            self._lost = f"rank {self.rank} was interrupted: {error_text(error)}"
            self._group = None
            raise

    def _failed(self, doing: str, error: Exception) -> ExecutorLost:
        """Leave the group, so that the others fail too, and find out who does not say so."""
        self._group = None
        try:
            missing = _within(2 * self._roll_call, self._call_the_roll)
        except (RuntimeError, TimeoutError):
            missing = [0]  # it is to name the others
        if missing:
            lost = self._late(missing, error, doing)
        else:
            lost = ExecutorLost(
                f"the other ranks gave up rank {self.rank} of {self.size}, which came to {doing} "
                f"too late, or its network failed: {error_text(error)}"
            )
        self._lost = str(lost)
        return lost

    def _call_the_roll(self) -> list[int]:
        """Return the ranks that are missing, as rank 0 found."""
        store, until = self._store, monotonic() + self._roll_call
        store.set(f"failed/{self.rank}", "")
        if self.rank == 0:
            missing = _missing(store, "failed", self.size, until)
            store.set("missing", _list(missing))
            store.set("heard/0", "")
            _missing(store, "heard", self.size, monotonic() + self._roll_call, missing)
        else:
            missing = _ranks(store.get("missing"))
            store.set(f"heard/{self.rank}", "")
        return missing

    def _late(
        self, missing: Iterable[int], error: Exception | None = None, doing: str = "the group"
    ) -> ExecutorLost:
        said = f"; gloo says: {error_text(error)}" if error else ""
        return ExecutorLost(
            f"{rank_names(missing)} of {self.size} ended, or did not come to {doing} within "
            f"{self._timeout:g} s{said}"
        )


def _missing(
    store: Any, key: str, size: int, deadline: float, without: Iterable[int] = ()
) -> list[int]:
    """Wait until all ranks have written a key; return those that have not by the deadline."""
    awaited = [rank for rank in range(size) if rank not in without]
    while awaited and monotonic() < deadline:
        awaited = [rank for rank in awaited if not store.check([f"{key}/{rank}"])]
        if awaited:
            sleep(_PAUSE)
    return awaited


def _list(ranks: Iterable[int]) -> str:
    """Return ranks as the store keeps them."""
    return ",".join(map(str, ranks))


def _ranks(listed: bytes) -> list[int]:
    return [int(rank) for rank in listed.decode().split(",") if rank]


def _within(seconds: float, ask: Callable[[], list[int]]) -> list[int]:
    """Return what the store answers; a store of a process that is stopped never does.

    Raises:
        TimeoutError: it has not answered. The thread that waits ends with the connection.
    """
    answered: Future[list[int]] = Future()

    def work() -> None:
        try:
            answered.set_result(ask())
        except RuntimeError as error:
            answered.set_exception(error)

    Thread(target=work, name="gloo-store", daemon=True).start()
    return answered.result(seconds)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
