"""Ranks as actors of a Ray cluster, on one of its machines and on two."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from paged_core import LLM, SamplingParams
from paged_core.errors import SettingsError
from paged_core.processes.ray_child import Place, greeted

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.usefixtures("compiled_kernels"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]

SMALL: dict[str, Any] = {
    "model": "demo",
    "dtype": "float32",
    "threads": 1,
    "num_blocks": 64,
    "block_size": 4,
    "max_model_len": 96,
}
ON_RAY = {"name": "tensor_parallel", "ranks": 2, "placement": "ray", "heartbeat_timeout": 120.0}
"""Ranks that import a tensor library on a busy machine answer no heartbeat for long."""
NO_ROOM = r"no room for 3 ranks; .* 2 for 1 CPU \(the largest has 1, and \d of 2 are free"
PROMPTS = [[5, 7, 11], [13, 17]]
SAMPLING = SamplingParams(max_tokens=8, temperature=0.7, seed=2, top_k=10)


@pytest.fixture(scope="module")
def machines() -> Iterator[str]:
    """The address of a cluster of two nodes, of which each has a core."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 1, "include_dashboard": False}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        nodes.add_node(num_cpus=1)
        yield nodes.address
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def cluster(
    where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A cluster on which ranks are placed."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    if where == "two machines":
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("machines"))
    else:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield


def answers(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SAMPLING)]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("where", "inner"),
    [
        ("two machines", "memory"),
        pytest.param("two machines", "local", marks=pytest.mark.long),
        pytest.param("a cluster of its own", "local", marks=pytest.mark.long),
    ],
)
def test_say_the_same_and_one_that_ends_or_stops_is_named(where: str, inner: str) -> None:
    with LLM(executor=inner, **SMALL) as alone:
        expected = answers(alone)
    with LLM(executor={**ON_RAY, "inner": inner}, **SMALL) as llm:
        executor: Any = llm.engine.executor
        assert answers(llm) == expected
        nodes = {worker.child.place.node for worker in executor._workers}
        assert len(nodes) == (2 if where == "two machines" else 1)
        first = [worker.pid for worker in executor._workers]
        if where == "two machines":
            for worker in executor._workers:
                worker.heartbeat.timeout = 5.0  # of these, which have started
            os.kill(first[0], signal.SIGSTOP)
        else:
            os.kill(first[0], signal.SIGKILL)
        (lost,) = llm.generate(PROMPTS[:1], SAMPLING)
        assert "rank 0 of 2" in (lost.outputs[0].error or "")
        assert answers(llm) == expected
        assert not {*first} & {worker.pid for worker in executor._workers}
        assert not [pid for pid in first if psutil.pid_exists(pid)]


def test_a_cluster_without_room_says_so(machines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_backends.executors.workers._PLACING", 2.0)
    ray.init(machines, logging_level="error", log_to_driver=False)
    try:
        with pytest.raises(SettingsError, match=NO_ROOM):
            LLM(executor={**ON_RAY, "ranks": 3, "inner": "memory"}, **SMALL)
        assert ray.is_initialized()
        states = {each["state"] for each in ray.util.placement_group_table().values()}
        assert states <= {"REMOVED"}
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    "said",
    [
        b"\xff \xff \xff\n",
        b"wrong 0 []\n",
        b"right 0 [1]\n",
        b" " * 9000,
    ],
)
def test_what_connects_and_is_no_rank_is_turned_away(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        assert greeted(ours, "right") is None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'right 1 ["node", "host", 2, 3]\n')
        assert greeted(ours, "right") == (1, Place("node", "host", 2, 3))
        assert theirs.recv(1) == b"."
