"""One server for all tests that ask nothing special of theirs, and OpenAI's client of it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from server.served import Served


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with Served({"served_model_name": ["demo", "other/name"]}) as served:
        yield served


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client:
        yield client
