"""Engines as actors of a Ray cluster of two nodes on this machine; actors and nodes are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from threading import Event
from time import sleep
from typing import Any

import psutil
import pytest

from paged_core.client.engine_client import ClientState
from paged_core.errors import EngineError, EngineLost, SettingsError
from paged_core.processes.ray_child import Cluster, RayChild, reason_of
from paged_plugins.replicas.routed_client import RoutedClient
from server.replica_clients import (
    LONG,
    all_ready,
    ask,
    make_client,
    pids,
    read,
    replica_of,
    share,
    until,
)
from server.served import serve_process
from server.test_serve_command import SMALL

ray = pytest.importorskip("ray")
MISSED_SOON = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
}
"""A cluster with these misses a node that is gone after seconds, not half a minute."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two cores each, as far as Ray knows."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", "/tmp")  # names of sockets are short there
        patch.setenv("OMP_NUM_THREADS", "1")
        head = {"num_cpus": 2, "include_dashboard": False, "_system_config": MISSED_SOON}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(num_cpus=2)
        patch.setenv("RAY_ADDRESS", made.address)
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def on_ray(
    test: Callable[[RoutedClient], Awaitable[None]], hang_seconds: float = 10.0, **table: Any
) -> None:
    async def main() -> None:
        client = make_client({"placement": "ray", **table}, observers=["metrics"])
        object.__setattr__(client._context, "hang_seconds", hang_seconds)
        async with client:
            await all_ready(client)
            await asyncio.wait_for(test(client), 240)

    asyncio.run(main())
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGSTOP, marks=pytest.mark.long), signal.SIGKILL]
)
def test_an_actor_is_lost(cluster: Any, how: signal.Signals) -> None:
    async def test(client: RoutedClient) -> None:
        readers = [ask(client, f"Read {n}", LONG) for n in range(2)]
        for reader in readers:
            await anext(reader)
        unread = [ask(client, f"Unread {n}", LONG) for n in range(4)]
        pid = pids(client)[replica_of(client, readers[0])]
        os.kill(pid, how)
        with pytest.raises(EngineLost, match=f"pid {pid}, an actor of Ray"):
            await read(readers[0])
        assert (await read(readers[1])).finished
        for stream in unread:
            assert len((await stream.wait()).outputs[0].token_ids) == LONG.max_tokens
        assert client.health().state is ClientState.READY
        await all_ready(client)
        assert pid not in pids(client)
        await share(client)
        assert 'engine="1"' in await client.report("metrics")

    on_ray(test, 3.0)


def test_what_no_node_holds_is_said(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paged_core.processes.ray_child.TOLD", 0.5)
    monkeypatch.setattr("paged_plugins.engine_process.engine_process._PLACING", 3.0)
    said = r"was not placed in 3 s: it asks one node of 2 for 3 CPU \(the largest has 2, and"
    with pytest.raises(EngineError, match=said):
        on_ray(asyncio.sleep, cpus=3.0)  # type: ignore[arg-type]


def test_the_end_waits_for_a_call_that_goes_on(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without, Ray would end this process."""
    calling, wait = Event(), ray.wait

    def late(*arguments: Any, **options: Any) -> Any:
        calling.set()
        sleep(1.0)
        return wait(*arguments, **options)

    monkeypatch.setattr(ray, "wait", late)
    closed = Cluster("test")
    child = RayChild("time:sleep", 0, name="late", options={"num_cpus": 9, "num_gpus": 0})
    assert calling.wait(30)
    with monkeypatch.context() as patch:
        patch.setattr("paged_core.processes.ray_child.TOLD", 0.1)
        closed.close()
        assert ray.is_initialized(), "a call that may never return is not waited for"
    closed.close()
    with pytest.raises(EngineError, match="the connection with Ray has ended"):
        child.meet(30)
    child.close()


def test_no_cluster_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")

    def fail(**_: object) -> None:
        raise ConnectionError("it does not answer\nat all")

    monkeypatch.setattr(ray, "init", fail)  # it tries for minutes

    async def main() -> None:
        client = make_client({"placement": "ray"})
        with pytest.raises(
            SettingsError, match=r"no Ray cluster at 127\.0\.0\.1:1.*not answer; set RAY_ADDRESS"
        ):
            await client.start()
        await client.close()

    asyncio.run(main())


def test_the_end_of_an_actor_says_why() -> None:
    context = ray.core.generated.common_pb2.ActorDiedErrorContext(
        class_name="_Actor",
        actor_id=bytes(16),
        pid=7,
        name="replica",
        ray_namespace="apart",
        node_ip_address="127.0.0.1",
        error_message="Its node has died.\n\thealth check failed",
    )
    error = ray.exceptions.ActorDiedError(context)
    assert reason_of(error) == (
        "ActorDiedError: The actor died unexpectedly before finishing this task."
        " Its node has died. health check failed"
    )
    trace = 'Traceback:\n  File "a.py"\nValueError: bad'
    raised = ray.exceptions.RayTaskError("serve", trace, None)
    assert reason_of(raised).endswith(" ValueError: bad")
    assert "a.py" not in reason_of(raised)


@pytest.mark.long
def test_a_server_of_actors_ends_in_order(cluster: Any) -> None:
    where = {"RAY_ADDRESS": os.environ["RAY_ADDRESS"], "OMP_NUM_THREADS": "1"}
    with serve_process(*SMALL, "--placement", "ray", **where) as served:
        served.wait_for("is served at")
        served.send(signal.SIGTERM)
        assert served.wait() == 0
        assert not any("SIGTERM received" in line for line in served.lines), "of Ray's"


@pytest.mark.long
def test_a_node_is_lost(cluster: Any) -> None:
    """Requests that it had go to the other node, where its engine is started again.

    The last of this file: until the cluster misses the node, it places actors there, which never
    come.
    """
    node = cluster.add_node(num_cpus=2, resources={"third": 1})

    async def test(client: RoutedClient) -> None:
        lost = [pid for pid in pids(client) if _is_on(pid, node)]
        assert lost, "no engine was placed there"
        unread = [ask(client, f"Unread {n}", LONG) for n in range(6)]
        await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
        for stream in unread:
            assert len((await stream.wait()).outputs[0].token_ids) == LONG.max_tokens
        await until(lambda: not set(lost) & set(pids(client)), "it was not missed")
        await all_ready(client)
        assert not set(lost) & set(pids(client))
        await share(client)

    on_ray(test, count=3)


def _is_on(pid: int, node: Any) -> bool:
    """Return whether a process was started by a node."""
    raylets = {info.process.pid for info in node.all_processes.get("raylet", ())}
    with suppress(psutil.Error):
        return bool(raylets & {each.pid for each in psutil.Process(pid).parents()})
    return False
