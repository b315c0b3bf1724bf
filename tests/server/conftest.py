"""One server for all tests that ask nothing special of theirs, and OpenAI's client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from server.served import Served

if TYPE_CHECKING:
    from openai import OpenAI


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with Served({"served_model_name": ["demo", "other/name"]}) as served:
        yield served


@pytest.fixture(scope="session")
def thinking() -> Iterator[Served]:
    """A server whose model thinks before it answers."""
    with Served(reasoning_parser="deepseek_r1") as served:
        yield served


@pytest.fixture(scope="session")
def client(served: Served) -> Iterator[OpenAI]:
    from openai import OpenAI

    with OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client:
        yield client
