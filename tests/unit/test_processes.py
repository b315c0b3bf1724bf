"""Child processes: how each ends, whatever it is doing, and what is sent to and from it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paged_core.errors import CheckpointError, EngineError, PagedCoreError, PluginError
from paged_core.processes import beat as beats
from paged_core.processes.beat import Beat, Beater, Pulse
from paged_core.processes.channel import ANSWER, CLOSE, PING, PONG, Channel, Heartbeat
from paged_core.processes.child import PythonChild
from paged_core.processes.failures import error_of, named_error, raised, told

TARGET = "unit.child_targets:{}"
LONG = 30.0


@contextmanager
def child_of(target: str, *arguments: object) -> Iterator[PythonChild]:
    child = PythonChild(TARGET.format(target), *arguments, name="a child")
    try:
        yield child
    finally:
        child.close()


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Each test closes what it opens, and ends what it starts."""
    before, files = set(psutil.Process().children(recursive=True)), psutil.Process().num_fds()
    yield
    assert not set(psutil.Process().children(recursive=True)) - before
    assert psutil.Process().num_fds() <= files


# ---------------------------------------------------------------------- the end of a child


def test_answers_and_ends_when_it_is_told_to() -> None:
    with child_of("echo", "said") as child:
        channel = child.channels[0]
        assert channel.receive_within(LONG) == (ANSWER, b"said")
        large = os.urandom(3 << 20)  # more than a socket holds
        for content in (b"", large, b"x"):
            channel.send(ANSWER, content)
        assert [channel.receive_within(LONG)[1] for _ in range(3)] == [b"", large, b"x"]
        assert not child.has_ended
        channel.send(CLOSE)
        assert child.wait(LONG)
        assert child.how_it_ended()[0] == "ended with exit status 0"
        with pytest.raises((EOFError, OSError)):
            channel.receive_within(LONG)


def test_event_loops_may_make_the_socket_non_blocking() -> None:
    """As that of uvloop does with all that it watches."""
    ours, theirs = map(Channel, socket.socketpair())
    os.set_blocking(ours.fileno(), False)
    os.set_blocking(theirs.fileno(), False)
    large = os.urandom(3 << 20)
    reader = Thread(target=lambda: [got.append(theirs.receive()[1]) for _ in range(2)])
    got: list[bytes] = []
    ours.send(ANSWER, large)
    ours.send(ANSWER, b"x")
    reader.start()
    reader.join(LONG)
    assert got == [large, b"x"]
    assert ours.flush(LONG)
    ours.close()
    theirs.close()


ENDINGS = {
    "exit": ("exit", 7, "ended with exit status 7"),
    "raise": ("fail", 0, "ended with exit status 1"),
    "signal": ("kill", signal.SIGSEGV, "was killed by SIGSEGV"),
    "memory": ("kill", signal.SIGKILL, "was killed by SIGKILL"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ENDINGS)
def test_says_how_it_ended(name: str) -> None:
    target, argument, said = ENDINGS[name]
    with child_of(target, argument) as child:
        with pytest.raises((EOFError, OSError)):
            child.channels[0].receive_within(LONG)
        how, remedy = child.how_it_ended()
        assert how == said
        assert ("num_blocks" if name == "memory" else "standard error") in remedy
        assert str(child.pid) in child.name


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["hold_the_lock", "sleep", "start_others"])
@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped"])
def test_is_killed_with_all_that_it_started(target: str, stopped: bool) -> None:
    with child_of(target) as child:
        assert child.channels[0].receive_within(LONG)[0] == ANSWER
        if stopped:
            os.kill(child.pid or 0, signal.SIGSTOP)
        group = psutil.Process(child.pid).children(recursive=True)
        assert bool(group) == (target == "start_others")
        child.kill()
        assert child.wait(LONG)
        psutil.wait_procs(group, LONG)
        assert not [each for each in group if each.is_running()]


@pytest.mark.heavy
def test_ends_when_it_is_collected() -> None:
    child = PythonChild(TARGET.format("sleep"), name="a child")
    pid = child.pid
    child.channels[0].receive_within(LONG)
    child.beat.close()
    child.channels[0].close()
    del child
    gc.collect()
    assert not psutil.pid_exists(pid or 0)


@pytest.mark.heavy
def test_outlives_the_thread_that_started_it() -> None:
    made: list[PythonChild] = []
    thread = Thread(target=lambda: made.append(PythonChild(TARGET.format("sleep"), name="it")))
    thread.start()
    thread.join()
    made[0].channels[0].receive_within(LONG)
    assert not made[0].wait(0.3)
    made[0].close()


@pytest.mark.heavy
def test_a_fork_neither_ends_nor_closes_what_its_parent_started() -> None:
    with child_of("echo", "said") as child:
        channel = child.channels[0]
        channel.receive_within(LONG)
        fork = os.fork()
        if fork == 0:
            child.close()
            os._exit(0 if not child.is_ours else 1)
        assert os.waitpid(fork, 0)[1] == 0
        channel.send(ANSWER, b"still")
        assert channel.receive_within(LONG) == (ANSWER, b"still")


PROGRAM = """
    import os, signal, sys, time
    from paged_core.processes.child import PythonChild

    child = PythonChild("unit.child_targets:{target}", name="a child")
    assert child.channels[0].receive()
    print(child.pid, flush=True)
    {ending}
"""
ENDS = {
    "killed": "os.kill(os.getpid(), 9)",
    "killed while the child is stopped": "os.kill(child.pid, 19); os.kill(os.getpid(), 9)",
    "exit": "sys.exit(3)",
    "end": "",
    "exit without cleaning up": "os._exit(0)",
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("target", "ending"),
    [*(("sleep", name) for name in ENDS), ("hold_the_lock", "killed")],
    ids=str,
)
def test_ends_with_the_program(target: str, ending: str) -> None:
    """Which needs no guard on ``__main__``, and does not answer for its child."""
    program = textwrap.dedent(PROGRAM).format(target=target, ending=ENDS[ending])
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as parent:
        assert parent.stdout is not None
        try:
            pid = int(parent.stdout.readline())
            with suppress(psutil.NoSuchProcess):  # it has ended already
                psutil.Process(pid).wait(LONG)
            assert not psutil.pid_exists(pid)
        finally:
            parent.kill()


# ---------------------------------------------------------------------- messages


@contextmanager
def channels() -> Iterator[tuple[Channel, Channel]]:
    ends = [Channel(end) for end in socket.socketpair()]
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


@given(st.lists(st.tuples(st.sampled_from([ANSWER, PING]), st.binary(max_size=99)), max_size=9))
def test_messages_come_whole_and_in_order(messages: list[tuple[bytes, bytes]]) -> None:
    with channels() as (one, other):
        for kind, content in messages:
            one.send(kind, content)
        assert [other.receive_within(LONG) for _ in messages] == messages
        with pytest.raises(TimeoutError):
            other.receive_within(0.0)


def test_sending_waits_for_no_reader_and_keeps_the_order() -> None:
    contents = [bytes([number]) * (200_000 * (number % 3)) for number in range(12)]
    with channels() as (one, other):
        began = time.monotonic()
        for content in contents:
            one.send(ANSWER, content)
        assert time.monotonic() - began < 5
        assert not one.flush(0.05)
        assert [other.receive_within(LONG)[1] for _ in contents] == contents
        assert one.flush(LONG)


def test_sending_to_a_closed_end_raises_and_what_was_kept_is_dropped() -> None:
    with channels() as (one, other):
        one.send(ANSWER, bytes(4 << 20))
        other.close()
        assert one.flush(LONG)
        with pytest.raises(OSError):
            one.send(ANSWER)


def test_a_heartbeat_is_asked_for_in_silence_and_missed_if_none_comes() -> None:
    with channels() as (one, other):
        heartbeat = Heartbeat(one, 0.2)
        assert not heartbeat.is_missed()
        time.sleep(0.15)
        assert not heartbeat.is_missed()
        assert other.receive_within(LONG) == (PING, b"")
        heartbeat.heard()
        assert not heartbeat.is_missed()
        time.sleep(0.15)
        assert not heartbeat.is_missed()
        time.sleep(0.25)
        assert heartbeat.is_missed()


@pytest.mark.heavy
def test_a_child_shows_that_it_lives_while_its_other_threads_are_at_work() -> None:
    with child_of("sleep") as child:
        channel = child.channels[0]
        channel.receive_within(LONG)
        channel.send(PING)
        kind, content = channel.receive_within(LONG)
        assert kind == PONG
        before = child.beat.read()
        child.beat.hear(content)  # as of another machine
        assert child.beat.read().at == pytest.approx(before.at, abs=1.0)


# ---------------------------------------------------------------------- errors


class Foreign(Exception):
    """An error of a plugin, which nothing else knows."""


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (CheckpointError("no file"), CheckpointError, "no file"),
        (Foreign("odd"), EngineError, "Foreign: odd"),
        (KeyError("x"), EngineError, "KeyError: 'x'"),
    ],
    ids=["ours", "of a plugin", "of Python"],
)
def test_errors_keep_their_kind_and_foreign_ones_become_ours(
    error: Exception, kind: type[PagedCoreError], said: str
) -> None:
    for found in (raised(named_error(error)), error_of(told(error))):
        assert type(found) is kind
        assert str(found).startswith(said)
    if kind is EngineError:
        found = error_of(told(error, lambda each: f"a plugin raised {each}"))
        assert type(found) is PluginError
        assert str(found) == f"a plugin raised {error}"


# ---------------------------------------------------------------------- beats


def test_the_beat_says_how_long_a_step_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(beats.time, "monotonic", lambda: now[0])
    shared = Beat()
    beater = Beater(shared)

    def step(seconds: float) -> Pulse:
        beater(True)
        begun = shared.read()
        now[0] += seconds
        beater(False)
        return begun

    try:
        assert step(30.0).estimate == 300.0
        assert step(0.1).estimate == 300.0
        assert shared.read() == Pulse(5, now[0], 0.0, in_step=False)
        for _ in range(120):
            found = step(0.1)
        assert found.in_step
        assert found.estimate == 1.0, "one long step counts no more"
        step(5.0)
        assert step(0.1).estimate == 50.0, "two do"
        now[0] += 3700
        step(0.1)
        assert step(0.1).estimate == 50.0
        now[0] += 3700
        step(0.1)
        assert step(0.1).estimate == 1.0
        assert shared.read().overdue == 0.0
        now[0] += 2
        assert shared.read().overdue == 2.0
    finally:
        shared.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory has no descriptors here")
def test_a_beat_needs_no_room_on_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write to a page that a full disk has no room for would end the process."""
    monkeypatch.setattr(beats.tempfile, "tempdir", "/no/such/folder")
    shared = Beat()
    shared.write(Pulse(1, 2.0, 3.0, in_step=True))
    assert shared.read().count == 1
    shared.close()
