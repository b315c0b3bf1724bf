"""Communicators: which one is chosen, waits that end early, what NCCL is asked for."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from paged_backends.communication import nccl
from paged_backends.communication.gloo import GlooCommunicator
from paged_backends.communication.settings import GlooSettings, NcclSettings, ShmSettings
from paged_backends.communication.shared_memory import ShmCommunicator
from paged_core.engine.contexts import CommunicatorContext, ExecutorContext
from paged_core.errors import ExecutorLost, SettingsError, UnsupportedModel
from paged_core.interfaces.communicator import RankGroup
from paged_core.plugins.registry import Registry
from paged_core.settings.schema import settings_class

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("compiled_kernels")]


def group_of(host: str = "127.0.0.1", timeout: float = 5, name: str = "unit") -> RankGroup:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return RankGroup(name=f"{name}-{os.getpid()}-{port}", host=host, port=port, timeout=timeout)


def chosen(device: str, host: str, name: str = "auto") -> str:
    """The class of what an executor's only rank gets."""
    registry = Registry.discover()
    settings = settings_class(registry)(model="demo", communicator={"name": name})
    context = ExecutorContext(
        settings=settings, registry=registry, needs_host_blocks=False, group=group_of(host)
    )
    made = context.make_communicator(device)
    assert made is not None
    made.close()
    return type(made).__name__


# ---------------------------------------------------------------------- the choice


def test_auto_takes_shared_memory_on_one_machine_and_gloo_elsewhere() -> None:
    assert chosen("cpu", "127.0.0.1") == "ShmCommunicator"
    assert chosen("cpu", "0.0.0.0") == "GlooCommunicator"


def test_one_that_is_named_says_why_it_cannot_serve() -> None:
    with pytest.raises(UnsupportedModel, match="other machines can reach"):
        chosen("cpu", "0.0.0.0", "shm")
    with pytest.raises(UnsupportedModel, match="on the CPU, and not on cuda:0"):
        chosen("cuda:0", "127.0.0.1", "shm")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_shared_memory_that_the_system_refuses_is_told_with_what_is_needed_and_free() -> None:
    context = CommunicatorContext(rank=0, size=2, device="cpu", group=group_of())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(SettingsError, match=r"4194304 bytes.*too large; \d+ MiB of memory are"):
            ShmCommunicator(ShmSettings(), context)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nccl_is_refused_where_there_is_no_gpu() -> None:
    with pytest.raises(SettingsError, match=r"'nccl' cannot be used here.*finds no CUDA device"):
        chosen("cuda:0", "127.0.0.1", "nccl")


# ---------------------------------------------------------------------- shared memory


def test_gloo_needs_no_port_on_one_machine() -> None:
    """Nor a name server, which PyTorch's store over TCP asks for names of addresses."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        group = RankGroup(name=f"taken-{port}", host="127.0.0.1", port=port, timeout=5)
        context = CommunicatorContext(group=group, rank=0, size=1, device="cpu")
        made = GlooCommunicator(GlooSettings(), context)
    tensor = torch.ones(4)
    made.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 4
    made.close()


_OVER_TCP = """
    import torch
    from paged_backends.communication.gloo import GlooCommunicator
    from paged_backends.communication.settings import GlooSettings
    from paged_core.engine.contexts import CommunicatorContext
    from paged_core.interfaces.communicator import RankGroup

    group = RankGroup(name="tcp", host="0.0.0.0", port={port}, timeout={timeout})
    context = CommunicatorContext(group=group, rank={rank}, size={size}, device="cpu")
    print("ready", flush=True)
    input()
    tensor = torch.ones(4)
    GlooCommunicator(GlooSettings(), context).all_reduce(tensor)
    print(tensor.tolist())
"""


def ranks_over_tcp(timeouts: dict[int, float], size: int) -> list[tuple[str, str]]:
    """Return what processes print that meet as ranks of machines do, each with its deadline."""
    port, pipe = group_of().port, subprocess.PIPE
    # PyTorch's store looks up the names of addresses: that is not to outlast these deadlines.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RES_OPTIONS": "timeout:1"}
    started = []
    for rank, timeout in timeouts.items():
        values = {"port": port, "timeout": timeout, "rank": rank, "size": size}
        program = textwrap.dedent(_OVER_TCP).format(**values)
        command = [sys.executable, "-c", program]
        started.append(
            subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe, env=environ)
        )
    try:
        for each in started:
            assert each.stdout and each.stdin
            assert each.stdout.readline() == "ready\n", each.communicate()
        for each in started:
            print(file=each.stdin, flush=True)
        return [each.communicate(timeout=120) for each in started]
    finally:
        for each in started:
            each.kill()


def test_gloo_names_the_rank_that_never_came_where_others_wait_longer_than_rank_0() -> None:
    for _, said in ranks_over_tcp({0: 2, 2: 60}, 3):
        assert "ExecutorLost: rank 1 of 3 ended, or did not come" in said


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bits_are_widened_and_rounded_as_by_torch(dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    noise = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    other = (noise * torch.logspace(-9, 5, 1 << 16)).to(dtype)
    group = group_of()
    contexts = [
        CommunicatorContext(group=group, rank=rank, size=2, device="cpu") for rank in (0, 1)
    ]
    with ThreadPoolExecutor(2) as pool:
        sums = [*pool.map(_sum_of, contexts, [every, other])]
    wanted = (every.float() + other.float()).to(dtype)
    kept = ~wanted.isnan()
    for each in sums:
        assert torch.equal(each.isnan(), wanted.isnan())
        assert torch.equal(each.view(torch.int16)[kept], wanted.view(torch.int16)[kept])


def _sum_of(context: CommunicatorContext, tensor: torch.Tensor) -> torch.Tensor:
    made, total = ShmCommunicator(ShmSettings(), context), tensor.clone()
    made.all_reduce(total)
    made.close()
    return total


# ---------------------------------------------------------------------- NCCL, without a GPU


class Recorder:
    """In place of PyTorch's group over NCCL: it records the calls of a rank.

    The other ranks give what ``others`` says; NCCL's own sums come from the last one to the first.
    """

    def __init__(self, *others: torch.Tensor) -> None:
        self.others, self.calls = others, list[str]()

    def wait(self) -> None:
        self.calls.append("wait")

    def _allgather_base(self, out: torch.Tensor, tensor: torch.Tensor) -> Recorder:
        assert tensor.is_contiguous()
        self.calls.append("allgather")
        out.copy_(torch.stack([tensor, *self.others]))
        return self

    def allreduce(self, tensors: Sequence[torch.Tensor]) -> Recorder:
        self.calls.append("allreduce")
        total, *rest = reversed([tensors[0].clone(), *self.others])
        for each in rest:
            total = total + each
        tensors[0].copy_(total)
        return self

    def broadcast(self, tensor: torch.Tensor, source: int) -> Recorder:
        self.calls.append(f"broadcast {source}")
        tensor.copy_(self.others[source - 1])
        return self

    def abort(self) -> None:
        self.calls.append("abort")


@pytest.mark.parametrize(
    ("sums", "wanted", "called"), [("ordered", 258.0, "allgather"), ("nccl", 256.0, "allreduce")]
)
def test_nccl_adds_in_order_unless_it_is_let_choose(
    monkeypatch: pytest.MonkeyPatch, sums: Any, wanted: float, called: str
) -> None:
    """256 + 1 is 256 in bfloat16, and 256 + 2 is 258."""
    one, large = (torch.tensor([value], dtype=torch.bfloat16) for value in (1.0, 256.0))
    group = Recorder(one, large)
    monkeypatch.setattr(nccl, "make_group", lambda context: group)
    context = CommunicatorContext(group=group_of(), rank=0, size=3, device="cuda:0")
    made = nccl.NcclCommunicator(NcclSettings(sums=sums), context)
    tensor = one.clone()
    made.all_reduce(tensor)
    assert float(tensor) == wanted
    grid = torch.arange(6).to(torch.bfloat16).reshape(2, 3).T
    group.others = (grid + 1, grid + 2)
    gathered = made.all_gather(grid)
    assert torch.equal(gathered, torch.stack([grid, *group.others]))
    made.broadcast(tensor := torch.zeros(3, 2, dtype=torch.bfloat16), 2)
    assert torch.equal(tensor, grid + 2)
    made.close()
    made.close()
    assert group.calls == [called, "wait", "allgather", "wait", "broadcast 2", "wait", "abort"]
    with pytest.raises(ExecutorLost, match="it was closed"):
        made.all_gather(grid)


def test_nccl_refuses_what_is_on_a_cpu_and_names_what_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = CommunicatorContext(group=group_of(), rank=1, size=2, device="cpu")
    with pytest.raises(UnsupportedModel, match="serves CUDA devices, and not cpu"):
        nccl.NcclCommunicator(NcclSettings(), context)

    def fails(context: CommunicatorContext) -> Any:
        raise RuntimeError("Duplicate GPU detected")

    monkeypatch.setattr(nccl, "make_group", fails)
    context = CommunicatorContext(group=group_of(), rank=1, size=2, device="cuda:0")
    with pytest.raises(ExecutorLost, match=r"rank 1 of 2 .*Duplicate GPU detected.*'gloo'"):
        nccl.NcclCommunicator(NcclSettings(), context)
