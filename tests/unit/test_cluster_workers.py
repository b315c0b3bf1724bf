"""Simulated clusters whose replicas are shared among processes: nothing depends on how many."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, Self
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from paged_core.errors import EngineError, SettingsError
from paged_core.plugins.registry import Registry
from paged_core.processes.beat import Beat
from paged_core.processes.channel import ERROR, Channel
from paged_core.processes.child_main import Parent
from paged_core.processes.failures import error_of
from paged_core.settings.schema import EngineSettings
from paged_plugins.lab import worker
from paged_plugins.lab.cluster import shard, simulate_cluster
from paged_plugins.lab.cluster.pauses import Pauses
from paged_plugins.lab.cluster.shard import Progress, open_shard
from paged_plugins.lab.cluster.simulate_cluster import num_workers, shard_process
from paged_plugins.workloads.request import WorkloadRequest
from paged_plugins.workloads.serving import Arrival
from paged_testing import registry_with
from unit.cluster_doubles import CROWDS, IDLE, IGNORING, STEP, Crowd
from unit.sequential_cluster import SequentialCluster
from unit.test_cluster import REGISTRY, ROUTERS, asks, engine_settings, listed, served

pytestmark = pytest.mark.heavy


IGNORES = registry_with(IGNORING)


FLAT = dict(engine_settings())["cost_model"]
"""Every step takes ``STEP``, so that many end together."""
POLICIES = st.fixed_dictionaries(
    {
        "router": st.sampled_from(ROUTERS),
        "scheduler": st.sampled_from(("token_budget", "prefill_or_decode", "faulty")),
        "num_blocks": st.sampled_from((24, 60)),
        "cost_model": st.sampled_from(
            (FLAT, {"name": "linear", "fixed": 0.2, "per_prefill_token": 0.013})
        ),
    }
)


class CopyingLink:
    """In place of a process: a shard that shares no object with who calls it."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, **_: str) -> None:
        self._opened = make(*arguments)
        self._shard = self._opened.__enter__()
        self._answers: deque[bytes] = deque()

    def send(self, method: str, /, *arguments: Any) -> None:
        answer = getattr(self._shard, method)(*pickle.loads(pickle.dumps(arguments)))
        self._answers.append(pickle.dumps(answer))

    def receive(self) -> Any:
        return pickle.loads(self._answers.popleft())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.__exit__(None, None, None)


@contextmanager
def copies_for_processes() -> Iterator[None]:
    with patch.object(simulate_cluster, "WorkerProcess", CopyingLink):
        yield


class TestRecords:
    @hypothesis_settings(max_examples=30, deadline=None)
    @given(CROWDS, POLICIES, st.integers(1, 5), st.integers(0, 99), st.sampled_from((1, 2, 5)))
    def test_are_those_of_one_loop(
        self,
        workload: Crowd,
        policies: dict[str, Any],
        num_replicas: int,
        seed: int,
        most_ends: int,
    ) -> None:
        """Whatever the number of shards, and however soon a shard reports what it did."""
        settings = engine_settings(IGNORES, **policies)
        one_loop = SequentialCluster(settings, IGNORES, workload, seed, num_replicas)
        expected = one_loop.run(), one_loop.ended
        with copies_for_processes(), patch.object(shard, "_MOST_ENDS", most_ends):
            for num_shards in range(1, min(num_replicas, 3) + 1):
                found = served(
                    settings,
                    workload,
                    seed,
                    num_replicas=num_replicas,
                    num_workers=num_shards,
                    registry=IGNORES,
                )
                assert found == expected

    def test_a_step_that_takes_no_time_ends_after_all_that_end_with_the_one_before(self) -> None:
        """``c`` is ignored by the step after that of ``a``, at the time at which ``b`` ends."""
        requests = asks("a", 0.0, output=1), asks("b", 0.0, output=1), asks("c", 0.1, priority=1)
        settings = engine_settings(IGNORES, scheduler="faulty", router="round_robin")
        with copies_for_processes():
            _, ended = served(
                settings, listed(*requests), num_replicas=2, num_workers=2, registry=IGNORES
            )
        assert [(each.id, each.finished, number) for each, number in ended] == [
            ("a", STEP, 0),
            ("b", STEP, 1),
            ("c", STEP, 0),
        ]

    def test_are_those_of_one_process(self) -> None:
        settings, workload = engine_settings(router="least_loaded"), Crowd(12, (0.0, STEP))
        alone, shared = (
            served(settings, workload, num_replicas=3, num_workers=number) for number in (1, 2)
        )
        assert shared == alone
        assert alone[0].num_failed > 0
        assert alone[0].num_served > 12

    def test_a_request_that_is_refused_is_no_load_for_the_next(self) -> None:
        """All three arrive at once."""
        workload = listed(asks("a", 0.0, length=500), asks("b", 0.0), asks("c", 0.0))
        settings = engine_settings(router="least_loaded")
        with copies_for_processes():
            _, ended = served(settings, workload, num_replicas=2, num_workers=2)
        assert [(each.id, number) for each, number in ended] == [("a", 0), ("c", 0), ("b", 1)]


class TestProcess:
    """A process of a shard, which a thread stands for where it must not die."""

    def answer(self, settings: EngineSettings, registry: Registry, *arrivals: Arrival) -> Any:
        """Return what two replicas answer when they have served requests to the end."""
        ours, theirs = map(Channel, socket.socketpair())
        thread = Thread(target=worker.main, args=(Parent((), (theirs,), Beat(), reads=True),))
        thread.start()

        def ask(*call: Any) -> Any:
            ours.send(b"M", pickle.dumps(call))
            kind, content = ours.receive_within(60)
            return error_of(content) if kind == ERROR else pickle.loads(content)

        try:
            ours.send(b"I", pickle.dumps((open_shard, (range(2), settings, registry))))
            for arrival in arrivals:
                assert ask("add", (0, arrival, False)) is None
            answer = Progress(is_complete=False)
            while isinstance(answer, Progress) and not answer.is_complete:
                answer = ask("run", (float("inf"),))
            return answer
        finally:
            ours.shut()
            thread.join()

    def test_serves_until_the_pipe_is_closed(self) -> None:
        progress = self.answer(engine_settings(), REGISTRY)
        assert (progress.ends, progress.is_complete) == ([], True)

    def test_hands_on_what_an_engine_raises(self) -> None:
        registry = registry_with(IDLE)
        request = asks("a", 0.0)
        arrival = Arrival(request, 0.0, tuple(request.prompt[0]))
        found = self.answer(engine_settings(registry, scheduler="faulty"), registry, arrival)
        assert isinstance(found, EngineError)
        assert str(found).startswith("replica 0: scheduler ")
        assert "IdleScheduler has planned nothing" in str(found)

    def test_raises_what_was_raised_in_it(self) -> None:
        settings = engine_settings(executor="memory")
        with (
            pytest.raises(SettingsError, match="'memory' runs in real time"),
            shard_process(range(2), settings, REGISTRY) as process,
        ):
            process.send("capacity")
            process.receive()

    def test_that_dies_is_reported(self) -> None:
        with (
            pytest.raises(EngineError, match=r"replicas 3 to 4 .* by SIGKILL; was memory"),
            shard_process(range(3, 5), engine_settings(), REGISTRY) as process,
        ):
            process.send("capacity")
            assert process.receive().num_blocks == 40
            os.kill(process.child.pid or 0, signal.SIGKILL)
            process.send("run", 1.0)
            process.receive()

    @pytest.mark.long
    def test_ends_with_ctrl_c(self, tmp_path: Path) -> None:
        """On a terminal all processes get it."""
        workload = tmp_path / "long.yaml"
        workload.write_text(
            "requests: 1000000\narrivals: {poisson: {rate: 9}}\nlengths: sharegpt\n"
        )
        log = tmp_path / "requests.jsonl"
        command = [sys.executable, "-m", "paged_core", "simulate", str(workload)]
        command += ["--replicas", "2", "--workers", "2", "--requests", str(log)]
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
        partial = tmp_path / f"{log.name}.{process.pid}.partial"
        while not (partial.exists() and partial.stat().st_size):
            assert process.poll() is None
            sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in errors
        assert list(tmp_path.iterdir()) == [workload]
        with suppress(ProcessLookupError):
            for _ in range(200):  # the tracker of multiprocessing ends a moment later
                os.killpg(process.pid, 0)
                sleep(0.05)
            pytest.fail("a process is left")


class TestPauses:
    @given(st.lists(st.tuples(st.booleans(), st.sampled_from((0.0, 1.0, 2.5)))))
    def test_the_shortest_of_those_that_are_left(self, changes: list[tuple[bool, float]]) -> None:
        pauses, left = Pauses(), list[WorkloadRequest]()
        for number, (is_added, seconds) in enumerate(changes):
            if is_added:
                left.append(asks(f"{number}", 0.0, followers=(asks("later", seconds),)))
                pauses.add(left[-1])
            elif left:
                pauses.remove(left.pop(0))
            expected = [each.followers[0].at for each in left]
            assert pauses.shortest == min(expected, default=float("inf"))

    def test_memory_does_not_grow_with_requests_that_have_ended(self) -> None:
        """The shortest of all stays, so that none of the others reaches the top of the heap."""
        pauses = Pauses()
        pauses.add(asks("first", 0.0, followers=(asks("later", 0.5),)))
        for number in range(1000):
            request = asks(f"{number}", 0.0, followers=(asks("later", 1.0),))
            pauses.add(request)
            pauses.remove(request)
        assert len(pauses._shortest) < 100
        assert pauses.shortest == 0.5


class TestNumber:
    @pytest.mark.parametrize(
        ("num_replicas", "asked", "expected"),
        [(1, None, 1), (31, None, 1), (32, None, 2), (1000, None, 4), (3, 8, 3), (1000, 8, 8)],
    )
    def test_pays(self, num_replicas: int, asked: int | None, expected: int) -> None:
        with patch("paged_plugins.lab.cluster.simulate_cluster.num_cores", lambda: 64):
            assert num_workers(num_replicas, asked) == expected
