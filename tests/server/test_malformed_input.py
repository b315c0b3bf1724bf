"""Malformed input by chance, over real sockets: the server refuses it, and stays whole."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from hypothesis import strategies as st

from integration.damage import ODD, for_examples, lengths
from paged_plugins.server.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from server.served import SECONDS, ServeProcess, ask, idle, serve_process, wait_until

pytestmark = pytest.mark.heavy

GOOD = {"prompt": "What is a block table?", "temperature": 0, "max_tokens": 8}
FLAT = 48 << 20
"""Bytes that the processes may grow by between the halves of a test."""
_PATIENCE = 0.05
"""Seconds to wait for an answer to what is not a whole request."""
_FIELDS = {
    "/v1/completions": CompletionRequest.__struct_fields__,
    "/v1/chat/completions": ChatRequest.__struct_fields__,
    "/tokenize": TokenizeRequest.__struct_fields__,
    "/detokenize": DetokenizeRequest.__struct_fields__,
    "/abort": ("request_id",),
}
_REQUIRED = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
    "/abort": {"request_id": "x"},
}
_PATHS = st.sampled_from([*_FIELDS])
_SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
_GOOD = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(values)
        for name, values in {
            "stream": (True, False),
            "stream_options": ({"include_usage": True}, {"continuous_usage_stats": True}),
            "n": (1, 2, 3),
            "best_of": (2, 3),
            "beam_width": (2,),
            "logit_bias": ({"5": 100},),
            "stop": ("a", ["the", "\n"]),
            "max_tokens": (1, 2, 9),
            "echo": (True,),
            "logprobs": (True, 0, 3),
            "prompt_logprobs": (1,),
            "truncate_prompt_tokens": (3, -1),
            "truncation_side": ("right", "left"),
            "return_token_ids": (True,),
            "response_format": (_FORMAT, {"type": "json_object"}),
            "structured_outputs": ({"regex": "[ab]{2}"}, {"choice": ["yes", "no"]}),
            "tools": ([_TOOL],),
            "tool_choice": ("none", "required"),
            "continue_final_message": (True,),
        }.items()
    },
)
"""Fields that are right, each by itself."""

# ---------------------------------------------------------------------- bodies

_VALUES = st.one_of(
    st.sampled_from([*ODD, "\U0001f600", 1024, 2**31, 2**63, 2**64, -1, 1e308]),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    ),
)


@st.composite
def _objects(draw: st.DrawFn, path: str) -> bytes:
    """A request that would be good, with fields of odd values, or of odd names."""
    names = st.one_of(st.sampled_from(_FIELDS[path]), st.text(max_size=12))
    fields = draw(st.one_of(_GOOD, st.dictionaries(names, _VALUES, min_size=1, max_size=3)))
    return json.dumps({**_REQUIRED[path], **fields}).encode("utf-8", "surrogatepass")


def _deep(depth: int) -> bytes:
    return b'{"prompt":' + b"[" * depth + b"]" * depth + b"}"


_BODIES = st.one_of(
    st.binary(max_size=200),
    st.integers(1, 200_000).map(_deep),
    st.integers(1, 400).map(lambda digits: b'{"prompt":"x","n":' + b"9" * digits + b"}"),
    st.integers(1, 1 << 20).map(lambda size: b'{"prompt":"' + b"x" * size + b'"}'),
    st.integers(1, 1 << 18).map(lambda size: b'{"' + b"y" * size + b'":1,"prompt":"x"}'),
    st.binary(min_size=1, max_size=8).map(lambda text: b'{"prompt":"' + text + b'"}'),
    st.sampled_from([b'{"prompt":"\xff\xfe"}', b'{"prompt":"\\ud800"}', b"\xef\xbb\xbf{}", b"{"]),
    _VALUES.map(lambda value: json.dumps(value).encode()),
)

# ---------------------------------------------------------------------- requests

_TOKEN = st.from_regex(rb"[!-9;-~]{1,20}", fullmatch=True)
_LINE = st.binary(max_size=60).map(lambda text: re.sub(rb"[\r\n]", b" ", text))
_ODD_HEADERS = st.one_of(
    st.tuples(_TOKEN, _LINE).map(b": ".join),
    st.sampled_from(
        [
            b"content-length: -1",
            b"content-length: 1e9",
            b"content-length: " + b"9" * 30,
            b"content-length: 3",
            b"transfer-encoding: chunked",
            b"transfer-encoding: gzip, chunked",
            b"expect: 100-continue",
            b"upgrade: websocket\r\nconnection: upgrade",
            b"host: elsewhere.example",
            b"origin: https://elsewhere.example",
            b"authorization: Basic !!!!",
            b"x-request-id: \x00\x7f\xff",
            b"content-type: text/plain; charset=utf-7",
            b"content-encoding: gzip",
            b": no name",
            b"no colon",
            b" folded",
            b"range: bytes=0-1,2-3",
            b"x: " + b"y" * 70_000,
        ]
    ),
)
_TARGETS = st.one_of(
    _PATHS.map(str.encode),
    st.sampled_from(
        [b"/", b"/v1/models/%ff", b"/v1/models/../..", b"*", b"//", b"/?a=%", b"/%00", b"/metrics"]
    ),
    _LINE.map(lambda text: b"/" + text.replace(b" ", b"%20")),
)
_METHODS = st.one_of(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"TRACE", b"CONNECT"]), _TOKEN
)


@st.composite
def _well_formed(draw: st.DrawFn) -> tuple[bytes, bool]:
    path = draw(_PATHS)
    body = draw(st.one_of(_objects(path), _BODIES))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body, True


@st.composite
def _odd(draw: st.DrawFn) -> tuple[bytes, bool]:
    headers = draw(st.lists(_ODD_HEADERS, min_size=1, max_size=4))
    start = b" ".join([draw(_METHODS), draw(_TARGETS), b"HTTP/1.1"])
    body = draw(st.one_of(st.just(b""), _BODIES))
    return b"\r\n".join([start, b"host: localhost", *headers, b"", body]), False


_EXCHANGES = st.one_of(
    _well_formed(),
    _well_formed(),
    _odd(),
    st.binary(min_size=1, max_size=300).map(lambda data: (data, False)),
)


def send(port: int, data: bytes, is_whole: bool) -> int | None:
    """Return the status of the first answer; ``None``: there was none."""
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection,
        suppress(ConnectionError, TimeoutError),
    ):
        connection.sendall(data)
        connection.settimeout(SECONDS if is_whole else _PATIENCE)
        while part := connection.recv(65536):
            answer += part
    assert answer or not is_whole, "a whole request was not answered"
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    assert found or not answer, answer[:200]
    return int(found[1]) if found else None


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    """A server of which no request takes long, whatever it asks for."""
    options = ("--num-blocks", "64", "--max-model-len", "64", "--server.max-choices", "4")
    with serve_process(*options) as served:
        served.port()
        yield served


@lengths(150, 3000)
def test_malformed_input_is_refused(served: ServeProcess, examples: int) -> None:
    """With 4xx or a closed connection; memory is flat, and no request is left behind."""
    port = served.port()
    expected = ask(port, "POST", "/v1/completions", GOOD)[1]["choices"]
    process = psutil.Process(served.process.pid)
    engine = [child.pid for child in process.children()]
    sizes: list[int] = []

    def check(data: st.DataObject) -> None:
        sent, is_whole = data.draw(_EXCHANGES)
        status = send(port, sent, is_whole)
        has_passed = status == 504 and b"deadline" in sent
        assert status is None or status < 500 or has_passed, status
        sizes.append(sum(each.memory_info().rss for each in (process, *process.children())))

    for_examples(examples, check)
    wait_until(lambda: idle(port), "requests are left")
    assert ask(port, "POST", "/v1/completions", GOOD)[1]["choices"] == expected
    assert ask(port, "POST", "/reset_prefix_cache")[0] == 200, "a block is held"
    assert "vllm:kv_cache_usage_perc{" in (found := ask(port, "GET", "/metrics")[1])
    assert re.search(r"^vllm:kv_cache_usage_perc{.*} 0(\.0)?$", found, re.MULTILINE), found
    assert [child.pid for child in process.children()] == engine, "the engine was started again"
    half = len(sizes) // 2
    assert max(sizes[half:]) - max(sizes[:half]) < FLAT
    assert not [line for line in served.lines if "status=5" in line or "Traceback" in line]
