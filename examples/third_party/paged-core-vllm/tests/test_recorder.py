"""The recorder writes line by line within bounds, keeps no text, and survives a full disk."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paged_core.errors import SettingsError
from paged_plugins.decisions.recording import read_recording

from paged_core_vllm.recorder import Recorder
from paged_core_vllm.settings import RecordSettings
from vllm_doubles import FakeRequest

PROMPT = list(range(50_000, 50_010))


def scheduler() -> Any:
    config = {"enable_chunked_prefill": True, "long_prefill_token_threshold": 0}
    pool = SimpleNamespace(num_gpu_blocks=33, get_num_free_blocks=lambda: 32)
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=False, **config),
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        parallel_config=SimpleNamespace(data_parallel_index=0),
        kv_cache_manager=SimpleNamespace(block_pool=pool),
        block_size=4,
        max_model_len=64,
        max_num_running_reqs=8,
        max_num_scheduled_tokens=64,
        running=[],
        waiting=[],
    )


def request(name: str, prompt: list[int] = PROMPT, answer: int = 3) -> Any:
    """A request that has ended; its blocks are hashed as vLLM does, by all that comes before."""
    made: Any = FakeRequest(name, prompt, answer, arrival_time=5.0)
    made.output_token_ids = made.output = list(range(7, 7 + answer))
    tokens = made.all_token_ids
    made.num_output_tokens = answer
    made.block_hashes = [repr(tokens[:end]).encode() for end in range(4, len(tokens) + 1, 4)]
    return made


def serve(recorder: Recorder, each: Any) -> None:
    """One request in one step."""
    recorder.added(each)
    data = SimpleNamespace(req_id=each.request_id, num_computed_tokens=0)
    again = SimpleNamespace(req_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    output = SimpleNamespace(
        num_scheduled_tokens={each.request_id: len(each.prompt_token_ids)},
        scheduled_new_reqs=[data],
        scheduled_cached_reqs=again,
    )
    recorder.planned(output, 6.0, is_step=True)
    recorder.ended(each, is_aborted=False, now=7.0)
    recorder.applied(scheduler())


def recorder(path: Path, **options: Any) -> Recorder:
    return Recorder(RecordSettings(path=path, **options), scheduler(), {"evictor": {"name": "arc"}})


def test_what_was_served_is_read_back_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.jsonl"
    made = recorder(path)
    first, turn = request("a"), request("b", [*PROMPT, 7, 8, 9, 1, 2])
    serve(made, first)
    serve(made, turn)
    read = read_recording(path)  # no line waits in a buffer
    assert read.requests["b"].follows == "a"
    assert read.prompts == {"a": "0:10", "b": "10:12"}
    assert [line["finished"] for line in read.trace] == [["a"], ["b"]]
    assert read.header.settings["evictor"] == {"name": "arc"}
    assert read.requests["b"].at == 0.0
    assert (read.ends["a"].at, read.ends["a"].step) == (2.0, 1)


@pytest.mark.parametrize("tokens", [False, True], ids=["keys", "tokens"])
def test_tokens_are_written_only_where_that_is_asked_for(tokens: bool, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    serve(recorder(path, tokens=tokens), request("a"))
    assert (str(PROMPT[3]) in path.read_text()) is tokens


def test_keys_of_two_recordings_have_nothing_in_common(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        serve(recorder(tmp_path / name), request("a"))
        keys.append(set(read_recording(tmp_path / name).requests["a"].blocks))
    assert len(keys[0]) == 2
    assert not keys[0] & keys[1]


def test_a_full_file_is_kept_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = recorder(path, max_bytes=1000, files=3)
    for number in range(20):
        serve(made, request(f"r{number}", [number] * 9))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t.jsonl", "t.jsonl.1", "t.jsonl.2"]
    assert all(each.stat().st_size < 2500 for each in tmp_path.iterdir())
    read = read_recording(path)
    assert not read.is_whole
    assert list(read.requests)[-1] == "r19"
    first = json.loads(path.read_text().splitlines()[0])
    assert first["part"] > 2


def test_an_abort_between_plan_and_result_has_its_step(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = recorder(path)
    serve(made, request("a"))
    late = request("b", [1] * 9)
    made.added(late)
    made._planned.append(None)
    made.step += 1
    made.ended(late, is_aborted=True, now=8.0)
    end = read_recording(path).ends["b"]
    assert (end.aborted, end.planned, end.step) == (True, True, 1)


def test_a_disk_that_fills_up_ends_the_recording_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = recorder(tmp_path / "t.jsonl")

    def full(_: str) -> int:
        raise OSError(28, "No space left on device")

    made._lines._file = SimpleNamespace(write=full)  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR, "vllm.paged_core"):
        serve(made, request("a"))
        serve(made, request("b"))
    assert [record.getMessage() for record in caplog.records] == [
        f"recording {tmp_path / 't.jsonl'} has ended: No space left on device"
    ]


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"record: .*cannot be written"):
        recorder(tmp_path / "file" / "t.jsonl")
