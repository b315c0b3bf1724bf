"""Dashboards that were made for vLLM show this engine: every metric that they name is scraped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.served import LONG, Served, open_request, read_until

pytestmark = pytest.mark.heavy

NAMES = set(re.findall(r"vllm:\w+", Path(__file__).with_name("dashboard.txt").read_text("utf-8")))


def test_every_metric_that_a_dashboard_names_is_scraped_and_adds_up() -> None:
    with Served({"served_model_name": ["chat-model", "other"]}, num_blocks=256) as served:
        for number in range(3):
            body = {"prompt": f"What is a block table? {number}", "max_tokens": 4 + number}
            assert served.ask("POST", "/v1/completions", body)[0] == 200
        with open_request(served, LONG) as connection:
            for _ in range(3):  # of its tokens, some are counted for sure
                read_until(connection, b"data: ")
        served.wait_until_idle()
        text: str = served.ask("GET", "/metrics")[1]
    found: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in re.findall(r"^([\w:]+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        assert 'model_name="chat-model"' in labels
        found.setdefault(name, []).append((labels, float(value)))

    def total(name: str) -> float:
        return sum(value for _, value in found[name])

    assert len(NAMES) > 15
    assert found.keys() >= NAMES
    ended = {labels: value for labels, value in found["vllm:request_success_total"] if value}
    assert [value for labels, value in ended.items() if '"abort"' in labels] == [1]
    assert sum(ended.values()) == total("vllm:e2e_request_latency_seconds_count") == 4
    for name in (name for name in found if name.endswith("_bucket")):  # for quantiles
        counts = [value for _, value in found[name]]
        assert counts == sorted(counts)
        assert counts[-1] == total(name.replace("_bucket", "_count"))
    assert total("vllm:time_to_first_token_seconds_bucket") > 0
    assert total("vllm:prompt_tokens_by_source_total") == total("vllm:prompt_tokens_total") > 0
    assert total("vllm:generation_tokens_total") > 4 + 5 + 6
    assert total("vllm:request_max_num_generation_tokens_count") == 4
    assert total("vllm:admission_rejections_total") == total("vllm:num_requests_waiting") == 0
    info = found["vllm:cache_config_info"][0][0]
    for label in ('block_size="16"', 'num_gpu_blocks="256"', 'kv_cache_size_tokens="4096"'):
        assert label in info
