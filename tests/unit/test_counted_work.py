"""Items that built-ins go through are counted, and calls that wait are found."""

from __future__ import annotations

import asyncio
import queue
import re
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paged_testing.use import items, waits_watched

LENGTH = 1000
PACKAGE = __name__.partition(".")[0]
LONG = (
    *("few + many", "few * 1000", "many == twin", "many != twin", "many < twin", "-1 in many"),
    *("text == equal", "nested == (0, tuple(many))", "'y' in text", "-1 in table.values()"),
    *("text + 'y'", "text.find('y')", "text.split()", "'%s' % text", "text[1:]"),
    *("some | small", "some - small", "small ^ some", "some & other", "some <= other"),
    *("some == other", "some.union(small)", "some.issubset(other)", "small.update(many)"),
    *("table == dict(table)", "table.keys() - small", "{**table}", "[*many]", "str(many)"),
    *("''.join(pieces)", "','.join(map(str, many))", "sum(many)", "min(table.values())"),
    *("any(many)", "sorted(many)", "many.sort()", "heapq.nsmallest(2, many)", "copy.copy(many)"),
    *("Counter(many)", "deque(many)", "list(reversed(many))", "frozenset(many)", "bytes(raw)"),
    *("many[1:]", "many.insert(0, 1)", "bisect.insort(many, 1)", "many.pop(0)", "del many[0]"),
    *("line.remove(999)", "many[0:0] = [1]", "array[:] = 0", "first, *rest = many", "many += twin"),
    *("it.text += 'y'", "it.key += (1,)", "key += (1,)", "some |= other", "array += 1"),
    *("pattern.search(text)", "hash(key)", "by_key[key]", "by_key.get(nested)", "nested in by_key"),
    *("array.sum()", "np.argmin(array)", "array + array", "array < array", "np.zeros(1000)"),
    *("sorted([999], key=many.index)", "list(map(many.index, [999]))", "min([9], key=many.count)"),
    *("array[twin]", "tensor * 2", "torch.argmax(tensor)"),
)
"""Statements that go through a thousand items."""
BRIEF = (
    *("len(many)", "many == few", "many < [5, *few]", "1 in some", "1 in range(1000)"),
    *("some & small", "small - some", "small <= some", "some.intersection(small)", "many[1]"),
    *("some.isdisjoint(small)", "some.update(small)", "small &= some", "table.get(1)"),
    *("many.append(1)", "many.pop()", "line.popleft()", "del many[-1]", "line.rotate(2)"),
    *("heapq.heappush(many, 1)", "bisect.bisect(many, 1)", "next(iter(many))"),
    *("isinstance(many, list)", "text.startswith('x')", "text.find('x', 900)", "text += 'y'"),
    *("pattern.match(text)", "array[1:].reshape(-1)", "tensor[1].item()"),
)
"""Statements that look at few."""
HEAD = "import bisect, copy, heapq, torch, numpy as np\nfrom collections import Counter, deque\n"


def things() -> dict[str, Any]:
    """Containers of many items and of few."""
    many, key = list(range(LENGTH)), tuple(range(LENGTH))
    return {
        **{"many": many, "twin": list(many), "few": [1, 2], "key": key, "nested": (0, key)},
        **{"some": set(many), "other": set(many), "small": {1, 2}, "line": deque(many)},
        **{
            "table": dict.fromkeys(many, 1),
            "by_key": {key: 1, (0, key): 2},
            "raw": bytearray(key[:1] * LENGTH),
        },
        **{"text": "x" * LENGTH, "equal": "".join(["x"] * LENGTH), "pieces": ["ab"] * LENGTH},
        **{"array": np.arange(LENGTH), "tensor": torch.arange(LENGTH), "pattern": re.compile("yz")},
        "it": SimpleNamespace(text="x" * LENGTH, key=key),
    }


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module with a function of each of the statements."""
    path = tmp_path_factory.mktemp("calls") / "counted_calls.py"
    names = ", ".join(things())
    text = [f"def call{n}({names}):\n    {each}\n" for n, each in enumerate((*LONG, *BRIEF))]
    path.write_text(HEAD + "".join(text))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[path.stem] = made = module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    del sys.modules[path.stem]


def test_counts_what_a_built_in_goes_through(calls: ModuleType) -> None:
    found = {
        each: items(partial(getattr(calls, f"call{n}"), **things()), "counted_calls")
        for n, each in enumerate((*LONG, *BRIEF))
    }
    assert {each: found[each] for each in LONG if found[each] < LENGTH} == {}
    assert {each: found[each] for each in BRIEF if found[each] > LENGTH // 4} == {}


def connect() -> None:
    with socket.socket() as made:
        made.settimeout(0.01)
        with pytest.raises(OSError, match=r"."):
            made.connect(("127.0.0.1", 9))


def ask_a_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 0.01).result()


def ask_a_queue() -> None:
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=0.01)


WAITS: tuple[tuple[str, Callable[[], object]], ...] = (
    ("sleeps", lambda: time.sleep(0)),
    ("opens a file", Path(__file__).read_text),
    ("waits for a program", partial(subprocess.run, ["true"], check=True)),
    ("waits for a socket", connect),
    ("waits for a thread", ask_a_thread),
    ("waits for a thread", ask_a_queue),
)


@pytest.mark.parametrize(("words", "call"), WAITS)
def test_finds_calls_that_wait(words: str, call: Callable[[], object]) -> None:
    async def waits() -> None:
        call()

    message = f"{__file__}:.* {words}: the engine"
    with pytest.raises(AssertionError, match=message), waits_watched(PACKAGE, "the engine"):
        call()
    watched = waits_watched(PACKAGE, "the engine", in_coroutines=True)
    with pytest.raises(AssertionError, match=message), watched:
        asyncio.run(waits())


def test_lets_coroutines_give_way_and_threads_wait() -> None:
    async def gives_way() -> None:
        await asyncio.sleep(0)
        await asyncio.to_thread(time.sleep, 0.01)
        await (await asyncio.create_subprocess_exec("true")).wait()
        _, writer = await asyncio.open_connection(sock=pair[0])
        writer.write(b"x")
        writer.close()

    pair = socket.socketpair()
    with pair[1], waits_watched(PACKAGE, "all", in_coroutines=True):
        asyncio.run(gives_way())
        Path(__file__).read_text()
    with waits_watched(PACKAGE, "all", files=False):
        Path(__file__).read_text()
