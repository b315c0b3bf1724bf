"""KV events of vLLM: the requests that they show, and what they cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_plugins.decisions import kv_source
from paged_plugins.decisions.kv_events import KvEvents
from paged_plugins.workloads.traces.files import TraceError


def stored(hashes: str, parent: str | None = None, size: int = 4, **more: Any) -> dict[str, Any]:
    """An event of blocks with a letter each."""
    return {
        **{"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": parent},
        **{"token_ids": [7] * size * len(hashes), "block_size": size, "lora_id": None},
        **{"medium": "GPU", "lora_name": None, "group_idx": 0, **more},
    }


def removed(hashes: str) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


BATCHES: list[Any] = [
    [100.0, [stored("sa")], 0],  # the first request: s is a prompt that others share
    [100.5, [stored("sb"), stored("cd", "b")], 0],  # the second, with its second chunk
    [101.0, [stored("e", "a"), removed("b"), {"type": "AllBlocksCleared"}], 0],
    [101.5, [stored("f", "e")], 0],  # its answer
    [102.0, [stored("g", "d")], 0],
    [111.0, [stored("hi", "f")], 0],  # a further turn of the first
    [111.5, [stored("j", "s"), stored("xy", medium="CPU"), stored("zw", group_idx=1)], 0],
    [130.0, [stored("k", "g")], 0],  # too late for an answer: a turn of one block
]


def requests_of(batches: list[Any]) -> tuple[list[tuple[Any, ...]], list[str]]:
    events = KvEvents(Path("events"))
    for batch in batches:
        events.take(batch)
    firsts, notes = events.requests()
    found = [
        (each.id, follows, each.at, each.prompt, each.output)
        for first in firsts
        for each, follows in first.links()
    ]
    return found, notes[1:]


def test_requests_are_chains_of_blocks_and_share_prefixes() -> None:
    found, notes = requests_of(BATCHES)
    assert found == [
        ("r0", None, 0.0, (range(8), range(8, 10)), 9),
        ("r2", "r0", 9.5, (range(24, 32),), 1),
        ("r1", None, 0.5, (range(4), range(10, 22), range(22, 24)), 5),
        ("r4", "r1", 28.0, (range(38, 42),), 1),
        ("r3", None, 11.5, (range(4), range(32, 36), range(36, 38)), 1),
    ]
    assert notes == []


def test_what_events_do_not_show_is_said() -> None:
    batches = [
        [5.0, [stored("b", "?")], 0],  # an answer to an earlier request, and its further turn
        [5.5, [stored("c", "b")], 0],
        [6.0, [stored("de", "c")], 0],
        [7.0, [stored("de", "c"), stored("fg", "!")], 0],
    ]
    found, notes = requests_of(batches)
    assert [each[3:] for each in found] == [
        ((range(16), range(16, 18)), 1),
        ((range(16), range(18, 20)), 1),
        ((range(20, 28), range(28, 30)), 1),
    ]
    assert [note.partition(" ")[0] for note in notes] == ["1", "3", "1"]
    assert notes[1].startswith("3 requests have prompts that lack")


def test_ranks_do_not_continue_each_other() -> None:
    found, _ = requests_of([[0.0, [stored("ab")], 0], [0.1, [stored("c", "b")], 1]])
    assert [each[4] for each in found] == [1, 1]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1.0], "events, line 1: events"),
        (["x", []], "line 1: ts"),
        ([1.0, [["BlockStored", 5]]], "line 1: block_hashes"),
        ([1.0, [stored("ab"), stored("c", size=8)]], "line 1: a block of 8 tokens among others"),
        ([1.0, [removed("a")]], "no event in it says that a prompt was stored"),
    ],
)
def test_what_is_no_event_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        requests_of([batch])


@pytest.mark.parametrize("form", ["packed", "arrays", "objects"])
def test_files_are_imported_and_are_a_workload(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kv.events"
    if form == "packed":
        path.write_bytes(b"".join(map(msgpack.packb, BATCHES)) + b"\x93\x01")
    else:
        keys = ("ts", "events", "data_parallel_rank")
        lines = [dict(zip(keys, each, strict=True)) for each in BATCHES]
        path.write_text("\n".join(map(json.dumps, BATCHES if form == "arrays" else lines)))
    assert main(["decisions", "import", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["requests"], told["follow"], told["batches"]) == (5, 2, 8)
    requests, settings = told["files"]
    asked = ("compare", requests, "--config", settings, "--vary", "evictor=lru,fifo", "--json")
    assert main([*asked, "--seeds", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0]


def test_files_that_are_broken_name_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "kv.events"
    path.write_bytes(msgpack.packb(BATCHES[0]) + b"\xc1")
    with pytest.raises(TraceError, match="line 2: it is not MessagePack"):
        kv_source.read_events(path)
    path.write_text("[1.0")
    with pytest.raises(TraceError, match="line 1: it is not JSON"):
        kv_source.read_events(path)


class Socket:
    """A subscriber that gets batches, then Ctrl-C."""

    def __init__(self, kind: int) -> None:
        self.batches = [(n, batch) for n, batch in enumerate(BATCHES) if n != 1]

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None: ...

    def connect(self, address: str) -> None:
        if ":" not in address:
            raise OSError("Invalid argument")

    def subscribe(self, topic: bytes) -> None: ...

    def poll(self, milliseconds: float) -> bool:
        if not self.batches:
            raise KeyboardInterrupt
        return True

    def recv_multipart(self) -> tuple[bytes, bytes, bytes]:
        number, batch = self.batches.pop(0)
        return b"", number.to_bytes(8, "big"), msgpack.packb(batch)


class Context(Socket):
    def __init__(self) -> None: ...

    socket = Socket


def test_events_are_received_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = SimpleNamespace(Context=Context, SUB=2, ZMQError=OSError)
    monkeypatch.setitem(sys.modules, "zmq", fake)
    asked = ["decisions", "import", "--kv-events", "tcp://a:1", "--output", str(tmp_path)]
    assert main(asked) == 0
    assert "note: 1 of the batches did not arrive" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="no address such as tcp://host:5557"):
        kv_source.receive_events("a", 1.0)
    with pytest.raises(SettingsError, match=r"no event came from tcp://a:1 in 0 seconds"):
        kv_source.receive_events("tcp://a:1", 0.0)
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(SettingsError, match="`pip install pyzmq msgpack`"):
        kv_source.receive_events("tcp://a:1", 1.0)
    assert main(["decisions", "import"]) == 2
