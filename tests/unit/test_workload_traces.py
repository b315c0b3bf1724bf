"""Workloads in files: requests as JSONL, and the formats of public traces."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paged_core.cli import main
from paged_core.errors import SettingsError
from paged_plugins.workloads.batch import NAMED
from paged_plugins.workloads.named import names, workload_spec
from paged_plugins.workloads.request import FIRST_OWN_ID, WorkloadRequest
from paged_plugins.workloads.spec import parse_spec
from paged_plugins.workloads.traces import files
from paged_plugins.workloads.traces.request_lines import request_lines

Capture = pytest.CaptureFixture[str]

SHAREGPT = [
    {
        "id": "QWJhYvA_0",
        "conversations": [
            {"from": "gpt", "value": "Welcome. "},
            {"from": "human", "value": "x" * 31},
            {"from": "gpt", "value": "y" * 16},
            {"from": "human", "value": "z" * 9},
            {"from": "gpt", "value": "w" * 4},
        ],
    },
    {"id": "empty", "conversations": []},
    {
        "id": "one",
        "conversations": [{"from": "human", "value": "ab"}, {"from": "gpt", "value": "c"}],
    },
]
SIX_HUNDRED = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": %s}\n'
AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
2023-11-16 18:17:04.0320000,5,0
2023-11-16 18:17:05.9799600,7,3
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2024-05-12 00:00:00+00:00,2162,5\r
2024-05-12 00:00:00.250000+00:00,85,4\r
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,\
Log Type
5,a1,3.1,ChatGPT,472,18,490,Conversation log
45,a1,2.0,ChatGPT,1087,230,1317,Conversation log
50,,2.0,GPT-4,0,0,0,API log
118.5,,9,GPT-4,417,276,693,API log
"""
BURSTGPT_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 4052, "input_length": 600, "output_length": 26, "hash_ids": [0, 9]}
{"timestamp": 4052, "input_length": 700, "output_length": 26}
"""
VLLM_BENCH = """{"prompt": "What is the capital of India?", "output_tokens": 10}

{"prompt": "xyz"}
{"prompt": "xyz", "output_tokens": 0}
{"prompt": "", "output_tokens": 5}
"""
VLLM_RESULT = """{"endpoint_type": "openai", "num_prompts": 8, "completed": 7, \
"total_input_tokens": 401, "start_times": [2283.418, 2283.726, 2284.146, 2283.951], \
"input_lens": [81, 68, 61, 46], "output_lens": [5, 11, 0, 12]}"""

VLLM_LOG = """Triton is installed, but doesn't include CPU backend.
(APIServer pid=9) DEBUG 11-29 23:59:58 [entrypoints/.../utils/request_logger.py:55] Request \
chatcmpl-1 details: prompt: 'a, prompt_token_ids: [1], ', prompt_token_ids: [5, 6, 7], \
prompt_embeds shape: None.
(APIServer pid=9) INFO 11-29 23:59:58 [entrypoints/.../utils/request_logger.py:62] Received \
request chatcmpl-1: params: SamplingParams(n=1), lora_request: None.
(APIServer pid=9) DEBUG 11-29 23:59:59 [entrypoints/.../utils/request_logger.py:98] Generated \
response chatcmpl-1 (streaming delta) details: output_token_ids: [3]
(APIServer pid=9) DEBUG 11-30 00:00:01 [entrypoints/.../utils/request_logger.py:55] Request \
cmpl-2-0 details: prompt: None, prompt_token_ids: [5, 6], prompt_embeds shape: None.
(APIServer pid=9) DEBUG 11-30 00:00:02 [entrypoints/.../utils/request_logger.py:55] Request \
chatcmpl-3 details: prompt: 'b', prompt_token_ids: [5, 6], prompt_embeds shape: None.
(APIServer pid=9) DEBUG 11-30 00:00:03 [entrypoints/.../utils/request_logger.py:98] Generated \
response chatcmpl-1 (streaming delta) details: output_token_ids: [3, 4]
(APIServer pid=9) DEBUG 11-30 00:00:03 [entrypoints/.../utils/request_logger.py:98] Generated \
response chatcmpl-1 (streaming complete) details: output_token_ids: None
(APIServer pid=9) DEBUG 11-30 00:00:03 [entrypoints/.../utils/request_logger.py:98] Generated \
response chatcmpl-3 details: output_token_ids: [8]
(APIServer pid=9) INFO:     127.0.0.1:52 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
ACCESS_LOG = """{"event": "parser_chosen", "level": "info", "timestamp": "2026-11-28T13:02:00Z"}
a line of something else
{"event": "answered", "path": "/v1/completions", "status": 200, "seconds": 1.0, "prompt_tokens": 7,\
 "completion_tokens": 16, "timestamp": "2026-11-28T13:02:11.500000Z"}
{"event": "answered", "path": "/v1/completions", "status": 200, "seconds": 3.5, "prompt_tokens": 9,\
 "completion_tokens": 2, "timestamp": "2026-11-28T13:02:12Z"}
{"event": "answered", "path": "/v1/completions", "status": 429, "seconds": 0.1, "prompt_tokens": 9,\
 "completion_tokens": 0, "timestamp": "2026-11-28T13:02:12Z"}
"""
UVICORN_LOG = """INFO:     Started server process [1]
INFO:     127.0.0.1:52 - "POST /v1/completions HTTP/1.1" 200 OK
"""
TEXT_LOG = "2026-11-28 13:02:11 [info     ] answered    method=POST path=/v1/completions\n"


def read(path: Path, text: str, **trace: Any) -> list[WorkloadRequest]:
    """Return the first requests of a file with this text."""
    path.write_text(text, "utf-8")
    values = {"trace": {"file": str(path), **trace}}
    return list(parse_spec(values, "test").build().draw(0))


class TestPublicTraces:
    def test_sharegpt(self, tmp_path: Path) -> None:
        first, second = read(tmp_path / "sharegpt.json", json.dumps(SHAREGPT))
        turns = list(first.family())
        assert [(each.num_new, each.output) for each in turns] == [(11, 4), (3, 1)]
        assert [each.id for each in turns] == ["0", "0.1"]
        assert (second.num_new, second.output, second.at) == (1, 1, 0.0)
        assert parse_spec({"trace": str(tmp_path / "sharegpt.json")}, "").has_text()

    @pytest.mark.parametrize("chunk", [1, 7, 2**18])
    def test_a_conversation_may_be_anywhere_in_the_file(
        self, tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "_CHUNK", chunk)
        text = json.dumps(SHAREGPT * 5, indent=1)
        assert len(read(tmp_path / "sharegpt.json", text)) == 10

    def test_azure(self, tmp_path: Path) -> None:
        requests = read(tmp_path / "azure.csv", AZURE_2023)
        assert [(each.num_new, each.output) for each in requests] == [(4808, 10), (110, 27), (7, 3)]
        assert [each.at for each in requests] == pytest.approx([0.0, 0.052, 2.0])
        first, second = read(tmp_path / "azure.csv", AZURE_2024)
        assert (first.at, second.at, second.num_new) == (0.0, 0.25, 85)

    def test_burstgpt(self, tmp_path: Path) -> None:
        requests = read(tmp_path / "burst.csv", BURSTGPT, scale=0.5)
        assert [each.at for each in requests] == [0.0, 20.0, 56.75]
        assert [each.session for each in requests] == ["a1", "a1", "3"]
        assert [each.output for each in requests] == [18, 230, 276]
        (alone,) = read(tmp_path / "burst.csv", BURSTGPT_1)
        assert (alone.num_new, alone.session) == (472, "0")

    def test_mooncake_shares_blocks(self, tmp_path: Path) -> None:
        first, second, third = read(tmp_path / "mooncake.jsonl", MOONCAKE)
        assert first.prompt == (range(512), range(512, 1024), range(1024, 1100))
        assert second.prompt == (range(512), range(9 * 512, 9 * 512 + 88))
        assert third.prompt == (range(FIRST_OWN_ID, FIRST_OWN_ID + 700),)
        assert [each.at for each in (first, second, third)] == pytest.approx([0, 3.052, 3.052])

    def test_vllm_bench(self, tmp_path: Path) -> None:
        first, second = read(tmp_path / "custom.jsonl", VLLM_BENCH)
        assert (first.num_new, first.output) == (8, 10)
        assert (second.num_new, second.output) == (1, 256)
        note = parse_spec({"trace": str(tmp_path / "custom.jsonl")}, "").check()
        assert note is not None
        assert note.startswith("note: 1 of 4 lines of ")

    @pytest.mark.parametrize("indent", [None, 2])
    def test_a_result_of_vllm_bench(self, tmp_path: Path, indent: int | None) -> None:
        text = json.dumps(json.loads(VLLM_RESULT), indent=indent)
        requests = read(tmp_path / "result.json", text)
        assert [(each.num_new, each.output) for each in requests] == [(81, 5), (68, 11), (46, 12)]
        assert [each.at for each in requests] == pytest.approx([0.0, 0.308, 0.533])

    def test_the_log_of_vllm(self, tmp_path: Path) -> None:
        requests = read(tmp_path / "server.log", VLLM_LOG)
        assert [(each.id, each.at, each.prompt, each.output) for each in requests] == [
            ("chatcmpl-1", 0.0, ((5, 6, 7),), 3),
            ("chatcmpl-3", 4.0, ((5, 6),), 1),
        ]

    def test_the_access_log_of_this_server(self, tmp_path: Path) -> None:
        requests = read(tmp_path / "server.log", ACCESS_LOG)
        assert [(each.at, each.num_new, each.output) for each in requests] == [
            (0.0, 9, 2),
            (2.0, 7, 16),
        ]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (UVICORN_LOG, "an access log without lengths; start vLLM with --enable-log-requests"),
            (TEXT_LOG, "or paged-core serve with PAGED_CORE_LOG_FORMAT=json"),
            (VLLM_LOG.replace("Generated", "x"), "no request in it has both lengths; start vLLM"),
            (VLLM_LOG.replace("11-30 00:00:02", "01-01 00:00:02"), "it arrives before the request"),
            (ACCESS_LOG.replace('"seconds": 3.5', '"seconds": -1'), "line 4: seconds"),
            ("", "it is empty"),
            (
                '{"prompt": 10, "outputs": 4}\n',
                "outputs: no such key; did you mean 'output'",
            ),
            ("time,tokens\n1,2\n", "its format is unknown"),
            ('{"tokens": 5}\n', "its format is unknown"),
            (AZURE_2023 + "yesterday,1,1\n", "line 6: 'yesterday' is no time"),
            (AZURE_2023 + "2023-11-16 18:17:09,-1,1\n", "line 6: '-1' is no number of tokens"),
            (AZURE_2023 + "2023-11-16 18:17:09,1\n", "line 6: the row has fewer fields"),
            (AZURE_2023 + "2023-11-16 18:17:09,1,1,1\n", "line 6: the row has more fields"),
            (AZURE_2023 + "2023-11-16 18:17:09,1,99999999999\n", "no number of tokens up to"),
            (
                AZURE_2023 + "2023-11-16 18:17:05,1,1\n",
                "line 6: it arrives before the request above",
            ),
            (AZURE_2023 + "2023-11-16 18:17:03,1,0\n", "sort them by `TIMESTAMP`"),
            (BURSTGPT + "4,,0,m,1,1,2,API log\n", "line 6: it arrives before the request above"),
            (MOONCAKE + SIX_HUNDRED % "[]", "line 4: it arrives before the request above it; sort"),
            ("TIMESTAMP,ContextTokens\n1,2\n", "no column 'GeneratedTokens'"),
            (BURSTGPT + "nan,,0,m,1,1,2,API log\n", "line 6: 'nan' is no number of seconds"),
            (AZURE_2023 + "1" * 140_000, "line 6: it is not CSV"),
            (MOONCAKE + '{"timestamp": -1}\n', "line 4: timestamp"),
            (MOONCAKE + '{"output_length": true}\n', "line 4: timestamp"),
            (MOONCAKE + SIX_HUNDRED % "[1]", "line 4: input_length 600 has 2 blocks"),
            (MOONCAKE + SIX_HUNDRED % "[1, 2, 3]", "`hash_ids` names 3; give one id for each"),
            (MOONCAKE + "[1]\n", "line 4: it is no JSON object"),
            (MOONCAKE + '{"a":' + "[" * 9000 + "\n", "line 4: it is not JSON"),
            (VLLM_RESULT.replace("start_times", "x"), "no `start_times`; use --save-detailed"),
            (VLLM_RESULT.replace("[5, ", "["), "are not of one length"),
            (f"{VLLM_RESULT}\n{VLLM_RESULT}", "other results follow"),
            (VLLM_BENCH + '{"prompt": "a", "output_token": 9}\n', "did you mean 'output_tokens'?"),
            (VLLM_BENCH + '{"prompt": ["a"]}\n', "line 6: `prompt` is no text"),
            (
                VLLM_BENCH + '{"prompt": "a", "output_tokens": "9"}\n',
                "`output_tokens` is no number",
            ),
            ("[1]", "entry 0 has no list `conversations`, as those of ShareGPT do"),
            ('[{"id": "a", "prompt": 3, "output": 1}]', "requests stand in a line each, without"),
            ('[{"conversations": [{"from": "human"}]}]', "has a message without"),
            ('[{"conversations": []}', "entry 1: a comma is missing before it"),
            ('[{"conversations": [}', "entry 0: it is not JSON"),
            ("[" * 100_000, "entry 0: it is nested too deeply"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, text: str, problem: str) -> None:
        path = tmp_path / "trace"
        with pytest.raises(SettingsError) as raised:
            read(path, text)
        assert str(raised.value).startswith(str(path))
        assert problem in str(raised.value)
        assert "\n" not in str(raised.value)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)

    def test_files_that_never_end_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(SettingsError, match="no ordinary file"):
            workload_spec("/dev/zero").build().draw(0).__next__()
        with pytest.raises(SettingsError, match="no workload is called"):
            workload_spec(str(tmp_path / "missing.jsonl"))
        monkeypatch.setattr(files, "MAX_LINE", 20)
        with pytest.raises(SettingsError, match="line 1: it is longer than 20 bytes"):
            read(tmp_path / "long.jsonl", MOONCAKE)
        monkeypatch.setattr(files, "MAX_ELEMENT", 20)
        monkeypatch.setattr(files, "_CHUNK", 8)
        with pytest.raises(SettingsError, match="longer than 20 characters"):
            read(tmp_path / "long.json", json.dumps(SHAREGPT))

    @pytest.mark.parametrize("text", [AZURE_2023[:40], BURSTGPT.partition("5,a1")[0], "[]"])
    @pytest.mark.parametrize("key", ["trace", "arrivals", "lengths"])
    def test_nothing_to_serve_is_said(self, tmp_path: Path, text: str, key: str) -> None:
        path = tmp_path / "trace"
        path.write_text(text)
        given = {"trace": str(path)}
        spec = {"trace": given, "arrivals": {"replay": given}, "lengths": given}[key]
        with pytest.raises(SettingsError, match="no request in it that reads and generates"):
            parse_spec({key: spec if key != "trace" else str(path)}, "").check()

    def test_fewer_requests_than_are_asked_for_are_noted(self, tmp_path: Path) -> None:
        path = tmp_path / "azure.csv"
        path.write_text(AZURE_2023)
        few = {"arrivals": {"interval": 1}, "first": 3}
        for spec in (
            {"trace": str(path)},
            {"arrivals": {"replay": {"trace": str(path)}}},
            {"mix": [few]},
        ):
            note = parse_spec({**spec, "name": "x", "requests": 500}, "").check()
            assert note == "note: x has 3 requests, and not the 500 it asks for"
            assert parse_spec({**spec, "requests": 3}, "").check() is None
            assert parse_spec(spec, "").check() is None or "mix" in spec

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        for name, content in (("a.csv", b"\xff\xfe"), ("a.json", b'[{"conversations": "\xff"}]')):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(SettingsError, match="not text in UTF-8"):
                list(workload_spec(str(tmp_path / name)).build().draw(0))


ids = st.integers(0, 10**12).flatmap(
    lambda start: st.integers(1, 5000).map(lambda count: range(start, start + count))
)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
fields = st.fixed_dictionaries(
    {
        "at": st.floats(0, 1e6),
        "prompt": st.lists(ids, min_size=1, max_size=3).map(tuple),
        "output": st.integers(1, 1000),
        "n": st.integers(1, 4),
        "priority": st.integers(-5, 5),
        "tenant": words,
        "session": words,
        "deadline": st.none() | st.floats(0, 100),
        "cache_salt": st.none() | words,
    }
)


@st.composite
def families(draw: st.DrawFn) -> list[WorkloadRequest]:
    """Requests by their time, some of them with followers."""
    numbers = iter(range(10**6))

    def family(depth: int) -> WorkloadRequest:
        below = draw(st.integers(0, 2)) if depth else 0
        name = f"r{next(numbers)}"
        followers = tuple(family(depth - 1) for _ in range(below))
        return WorkloadRequest(id=name, followers=followers, **draw(fields))

    found = [family(2) for _ in range(draw(st.integers(1, 3)))]
    return sorted(found, key=lambda request: request.at)


class TestRequestLines:
    @given(requests=families())
    @settings(max_examples=25)
    def test_they_read_back_as_they_were(
        self, requests: list[WorkloadRequest], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.mktemp("lines") / "requests.jsonl"
        assert read(path, "".join(request_lines(requests))) == requests

    def test_a_prompt_may_be_its_length(self, tmp_path: Path) -> None:
        lines = [
            {"id": "a", "prompt": 5, "output": 2},
            {"id": "b", "follows": "a", "after": 2.5, "prompt": 3, "output": 1, "n": 2},
            {"id": "c", "follows": "a", "prompt": "7:9", "output": 1},
            {"id": "d", "at": 1, "prompt": 4, "output": 1},
        ]
        first, last = read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
        one, other = first.followers
        assert (one.at, one.n, one.num_new, other.prompt) == (2.5, 2, 3, (range(7, 9),))
        contents = [each.prompt[0].start for each in (first, one, last)]
        assert contents == [FIRST_OWN_ID, FIRST_OWN_ID + 5, FIRST_OWN_ID + 8]

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ({"id": "a", "prompt": 1, "output": 1}, "a line above has the id 'a'"),
            ({"id": "b", "prompt": 1, "output": 1}, "it arrives before the request above it"),
            ({"id": "b", "prompt": 1, "output": 1, "follows": "x"}, "it follows 'x', which is not"),
            ({"id": "b", "prompt": 1, "output": 1, "after": 1}, "`after` is for requests with"),
            ({"id": "b", "prompt": 1, "output": 1, "follows": "a", "at": 1}, "give `after`"),
            ({"id": "b", "prompt": 0, "output": 1}, "the prompt 0 has no tokens"),
            ({"id": "b", "prompt": "5:5", "output": 1}, "the prompt '5:5' has no tokens"),
            ({"id": "b", "prompt": "a:b", "output": 1}, "neither a length nor ranges"),
            ({"id": "b", "prompt": 10**8, "output": 1}, "more than 10,000,000 tokens"),
            (
                {"id": "b", "prompt": f"{10**15}:{10**15 + 1}", "output": 1},
                "has an id of 1,000,000",
            ),
            ({"id": "b", "prompt": 1, "output": "1"}, "output: give a whole number, not '1'"),
            (
                {"id": "b", "prompt": 1, "output": 1, "at": 1700000000000},
                "at: give seconds, 1e+12 at most, not 1700000000000; milliseconds?",
            ),
            ({"id": "b", "prompt": 1, "output": 1, "at": True}, "at: give a number, not True"),
            ({"id": "b", "prompt": 1, "output": 1, "colour": 1}, "colour: no such key"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, line: dict[str, Any], problem: str) -> None:
        above = {"id": "a", "at": 1.0, "prompt": 1, "output": 1}
        with pytest.raises(SettingsError) as raised:
            read(tmp_path / "a.jsonl", json.dumps(above) + "\n" + json.dumps(line))
        assert str(raised.value).startswith(f"{tmp_path / 'a.jsonl'}, line 2: ")
        assert problem in str(raised.value)

    def test_a_limit_cuts_the_last_family(self, tmp_path: Path) -> None:
        path = tmp_path / "chat.jsonl"
        drawn = list(workload_spec("chat").build().draw(0))
        path.write_text("".join(request_lines(drawn)))
        every = [request for first in drawn for request in first.family()]
        for limit in (1, 2, 7, 30):
            spec = workload_spec(str(path)).model_copy(update={"requests": limit})
            cut = [request for first in spec.build().draw(0) for request in first.family()]
            assert [request.id for request in cut] == [request.id for request in every][:limit]

    def test_a_long_conversation(self, tmp_path: Path) -> None:
        lines = [{"id": "0", "prompt": 1, "output": 1}] + [
            {"id": str(place), "follows": str(place - 1), "prompt": 1, "output": 1}
            for place in range(1, 10_000)
        ]
        text = "\n".join(map(json.dumps, lines))
        (first,) = read(tmp_path / "long.jsonl", text)
        assert len(list(first.family())) == 10_000
        assert len(list(first.first(9000).family())) == 9000
        line = {"id": "x", "follows": "0", "prompt": 1, "output": 1}
        with pytest.raises(SettingsError, match="more than 10,000 requests follow each other"):
            read(tmp_path / "long.jsonl", f"{text}\n{json.dumps(line)}")


class TestCommand:
    @pytest.mark.heavy
    @pytest.mark.parametrize("name", [name for name in names() if name not in NAMED])
    def test_what_it_writes_reads_back(self, name: str, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "requests.jsonl"
        command = ["lab", "workload", name, "--seed", "3", "--requests", "40"]
        assert main([*command, "--output", str(path), "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        spec = workload_spec(name).model_copy(update={"requests": 40})
        assert list(workload_spec(str(path)).build().draw(0)) == list(spec.build().draw(3))
        assert main(["lab", "workload", str(path), "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again == {**figures, "workload": "requests", "seed": 0}
        assert figures["requests"] == 40

    def test_the_table(self, tmp_path: Path, capsys: Capture) -> None:
        path = tmp_path / "custom.jsonl"
        path.write_text(VLLM_BENCH)
        assert main(["lab", "workload", str(path)]) == 0
        shown = capsys.readouterr()
        assert "all at once" in shown.out
        assert "estimated, 4 characters a token" in shown.err
